"""Pictures for people: the batch as a contact sheet with what is guilty marked, and the size of a case against calls.

PNG files, drawn with matplotlib (the extra `pictures`), which is imported when the first one is drawn. Only its objects
are used: no window, no pyplot, nothing of a user's own plots changes. Equal arguments give equal bytes.
"""

from reprokit.report.figures.curve import curve
from reprokit.report.figures.sheet import contact_sheet, sheet_of

__all__ = ["contact_sheet", "curve", "sheet_of"]
