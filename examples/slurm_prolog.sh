#!/bin/sh
# A node that is not fit is drained before it eats a job: SLURM's Prolog asks `rollmill doctor`.
#
#   slurm.conf:   Prolog=/etc/slurm/rollmill_prolog.sh
#                 PrologFlags=Alloc
#
# SLURM runs it on every node of a job, as root and with hardly any environment, before the job's first step. Where it ends
# with anything but 0, the node is drained and the job goes back into the queue. Only what doctor calls a fault does that, or
# a doctor that does not answer: a missing program or a wrong word here must not drain the whole cluster.

ROLLMILL=${ROLLMILL:-/opt/rollmill/bin/rollmill}     # of a virtual environment that all nodes see
ROLLMILL_RUN_DIR=${ROLLMILL_RUN_DIR:-/tmp}           # where runs are written: its disk is tried
ROLLMILL_NEED=${ROLLMILL_NEED:-}                     # extras that jobs need, such as "vizdoom atari"
ROLLMILL_SECONDS=${ROLLMILL_SECONDS:-60}             # keep it below PrologEpilogTimeout

say() {
    echo "rollmill_prolog: $*" >&2
    if command -v logger >/dev/null; then logger -t rollmill_prolog "$*"; fi
}

if [ ! -x "$ROLLMILL" ]; then
    say "$ROLLMILL is missing: this node is not checked"
    exit 0
fi
# --clean removes what dead games have left in shared memory, of all users. ROLLMILL_NEED is several words.
# shellcheck disable=SC2086
report=$(timeout "$ROLLMILL_SECONDS" "$ROLLMILL" doctor --clean --run-dir "$ROLLMILL_RUN_DIR" \
    ${ROLLMILL_NEED:+--need $ROLLMILL_NEED} 2>&1)
code=$?
case $code in
    0) exit 0 ;;
    1) say "not fit for job ${SLURM_JOB_ID:-?}: $(echo "$report" | grep fault | head -3)" ;;
    124) say "doctor did not answer within $ROLLMILL_SECONDS s" ;;
    *)
        say "doctor ended with $code, which says nothing about the node: $report"
        exit 0
        ;;
esac
exit 1
