# The image that replays run in: a Python, and the wheels that an incident's requirements.txt pins. reprokit and the
# incident are mounted when it runs, so one image serves every incident with the same requirements. `reprokit replay`
# builds it by itself. By hand, in a folder with this file:
#
#   pip wheel --no-deps -r requirements.txt -w wheels
#   docker build --build-arg BASE=python:3.11-slim -t my-replay .
#
# The wheels come from outside, with whatever credentials your index wants: none of them are ever in here, and the build
# needs no network. BASE must have a pip, and the Python (major.minor), architecture and libc of the one above.

ARG BASE=python:3.11-slim

FROM ${BASE} AS install
ARG KEY=by-hand
LABEL reprokit.stage=${KEY}
USER 0
COPY wheels /wheels
# The base's pip installs, so that nothing is in the environment but what was in the captured one. --no-deps: the list is
# complete, and a conflict in it is replayed. Compiled here and on all cores, since nothing can be written when it runs.
RUN python3 -m venv --without-pip /opt/venv \
    && python3 -m pip --python /opt/venv/bin/python install --no-index --no-deps --no-compile --no-cache-dir \
       --disable-pip-version-check --root-user-action=ignore /wheels/*.whl \
    && { /opt/venv/bin/python -m compileall -qq -j 0 /opt/venv/lib || true; }

# A second stage, so that the wheels are not in the image as well as what was installed from them.
FROM ${BASE}
LABEL reprokit=1
USER 0
COPY --from=install /opt/venv /opt/venv
# A name for the user, since getpass and torch's compiler cache ask for one.
RUN echo 'reprokit:x:1000:1000::/tmp:/bin/sh' >> /etc/passwd && echo 'reprokit:x:1000:' >> /etc/group
ENV PATH=/opt/venv/bin:$PATH
USER 1000:1000
WORKDIR /tmp
CMD ["python3"]
