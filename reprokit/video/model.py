"""A small vision transformer for video: [B, C, T, H, W] to tokens, the first of which is [CLS].

Attention is causal by blocks of time: a patch sees the patches of its own frame and of earlier ones, never later ones
and never [CLS]; [CLS] sees all. So what is said about frame t does not depend on how long the clip goes on. Positions
are computed from coordinates, not looked up: any number of frames up to `num_frames` and any size in whole patches do.

In training only some patches are kept, drawn for each clip from torch's global generator of the clip's device. They are
dropped before they are embedded, so a dropped patch costs nothing.
"""

from __future__ import annotations

import torch
from einops import rearrange, repeat
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from reprokit.errors import BadInput

WAVELENGTH = 100.0  # the longest, in positions: grids are tens of positions wide, text is thousands
CHANNELS = 3


def vit_tiny(
    img_size: int,
    patch_size: int = 16,
    *,
    num_frames: int,
    tubelet_size: int,
    use_rope: bool,
    token_drop_rate: float,
    attn_mode: str = "block_causal",
    width: int = 192,
    depth: int = 12,
    heads: int = 3,
) -> VideoTransformer:
    """The usual tiny size; every part of it can be made smaller still."""
    return VideoTransformer(
        img_size=img_size,
        patch_size=patch_size,
        num_frames=num_frames,
        tubelet_size=tubelet_size,
        use_rope=use_rope,
        token_drop_rate=token_drop_rate,
        attn_mode=attn_mode,
        width=width,
        depth=depth,
        heads=heads,
    )


class VideoTransformer(nn.Module):
    """[B, C, T, H, W] to [B, 1 + patches kept, width]."""

    def __init__(
        self,
        *,
        img_size: int,
        patch_size: int,
        num_frames: int,
        tubelet_size: int,
        use_rope: bool,
        token_drop_rate: float,
        attn_mode: str,
        width: int,
        depth: int,
        heads: int,
    ) -> None:
        super().__init__()
        if attn_mode not in ("block_causal", "full"):
            raise BadInput(f"model.attn_mode: {attn_mode!r} is unknown; use 'block_causal' or 'full'")
        if width % (2 * heads):
            raise BadInput(f"model.width: {width} is no multiple of 2 x {heads} heads; change one of them")
        self.patch_size, self.num_frames, self.tubelet_size = patch_size, num_frames, tubelet_size
        self.use_rope, self.token_drop_rate, self.block_causal = use_rope, token_drop_rate, attn_mode == "block_causal"
        self.width, self.head_width = width, width // heads
        grid = self.grid(num_frames, img_size, img_size)
        self.num_patches = grid[0] * grid[1] * grid[2]  # of the largest clip it is meant for, before any is dropped
        self.embed = nn.Linear(CHANNELS * tubelet_size * patch_size**2, width)
        self.cls = nn.Parameter(0.02 * torch.randn(width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, clip: Tensor) -> Tensor:
        patches, positions = self._kept(*self._patches(clip))
        tokens = self.embed(patches)
        if not self.use_rope:
            turns = angles(positions, self.width // 2)
            tokens = tokens + torch.cat([turns.sin(), turns.cos()], dim=-1)
        tokens = torch.cat([repeat(self.cls, "d -> b 1 d", b=len(clip)), tokens], dim=1)
        mask = block_causal_mask(positions[..., 0]) if self.block_causal else None
        rope = _rope(positions, self.head_width // 2) if self.use_rope else None
        for block in self.blocks:
            tokens = block(tokens, mask, rope)
        normed: Tensor = self.norm(tokens)
        return normed

    def grid(self, frames: int, height: int, width: int) -> tuple[int, int, int]:
        """Patches along time, height and width."""
        if not 0 < frames <= self.num_frames or frames % self.tubelet_size:
            allowed = f"up to {self.num_frames}, in steps of {self.tubelet_size}"
            raise BadInput(f"clip: {frames} frames, the encoder takes {allowed}; change model.num_frames")
        if height % self.patch_size or width % self.patch_size:
            raise BadInput(f"clip: {height}x{width} pixels, no whole patches of {self.patch_size}; crop to a multiple")
        return frames // self.tubelet_size, height // self.patch_size, width // self.patch_size

    def _patches(self, clip: Tensor) -> tuple[Tensor, Tensor]:
        """Patches [B, N, pixels] in order of time, and their positions (t, y, x) as [1, N, 3]."""
        grid = self.grid(*clip.shape[2:])
        pattern = "b c (t i) (y j) (x k) -> b (t y x) (i j k c)"
        patches = rearrange(clip, pattern, i=self.tubelet_size, j=self.patch_size, k=self.patch_size)
        positions = torch.cartesian_prod(*(torch.arange(length, device=clip.device) for length in grid))
        return patches, positions[None]

    def _kept(self, patches: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """What token dropping leaves of them, in the same order; at least one."""
        if not self.training or not self.token_drop_rate:
            return patches, positions
        batch, count, _ = patches.shape
        keep = max(1, round(count * (1 - self.token_drop_rate)))
        kept = torch.rand(batch, count, device=patches.device).argsort(dim=1)[:, :keep].sort(dim=1).values
        return torch.take_along_dim(patches, kept[..., None], dim=1), positions[0][kept]


class Block(nn.Module):
    """Attention and a perceptron, each on a normalised copy of what it adds to."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: Tensor, mask: Tensor | None, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        tokens = tokens + self._attend(self.attention_norm(tokens), mask, rope)
        added: Tensor = self.mlp(self.mlp_norm(tokens))
        return tokens + added

    def _attend(self, tokens: Tensor, mask: Tensor | None, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        query, key, value = rearrange(self.qkv(tokens), "b n (i h d) -> i b h n d", i=3, h=self.heads)
        if rope is not None:
            query, key = _turn(query, *rope), _turn(key, *rope)
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=mask)
        out: Tensor = self.out(rearrange(mixed, "b h n d -> b n (h d)"))
        return out


def block_causal_mask(times: Tensor) -> Tensor:
    """True where a row may look at a column: [B, 1, 1 + N, 1 + N] for the patches' times [B, N], [CLS] first."""
    seen = times[:, :, None] >= times[:, None, :]
    rows = pad(seen, (1, 0), value=False)  # no patch sees [CLS]
    return pad(rows, (0, 0, 1, 0), value=True)[:, None]  # [CLS] sees all


def angles(positions: Tensor, pairs: int) -> Tensor:
    """An angle for each pair of features, [..., pairs], from positions [..., 3]: a third of the pairs for each axis."""
    third = pairs // 3
    shares = (pairs - 2 * third, third, third)
    parts = []
    for axis, share in enumerate(shares):
        frequencies = WAVELENGTH ** (-torch.arange(share, device=positions.device) / max(1, share))
        parts.append(positions[..., axis, None] * frequencies)
    return torch.cat(parts, dim=-1)


def _rope(positions: Tensor, pairs: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [B, 1, 1 + N, pairs]; [CLS] has no position and is not turned."""
    turns = pad(angles(positions, pairs), (0, 0, 1, 0))[:, None]
    return turns.cos(), turns.sin()


def _turn(features: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions (Su et al., arXiv:2104.09864): pairs of features, turned by their angle."""
    one, two = features.chunk(2, dim=-1)
    return torch.cat([one * cos - two * sin, one * sin + two * cos], dim=-1).to(features.dtype)
