#!/usr/bin/env bash
# Builds the book from docs/ into target/book and checks it: every link between files and to headings has to resolve, and
# the reference pages have to agree with the code. Links to other sites are not fetched.
#
#   docs.sh         checks and builds
#   docs.sh check   checks only: needs Python and nothing else
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/lib.sh"

python3 "$ROOT/hack/docs.py" check
python3 "$ROOT/hack/crates-svg.py" check
[ "${1:-}" != check ] || exit 0

mdbook=$(cargo_tool mdbook 0.5.4 --no-default-features --features search)
work_up
cp "$ROOT/docs/book.toml" "$WORK"
python3 "$ROOT/hack/docs.py" stage "$WORK/src"
rm -rf "$TARGET/book"
"$mdbook" build --dest-dir "$TARGET/book" "$WORK"
python3 "$ROOT/hack/docs.py" html "$TARGET/book"
echo "the book is in $TARGET/book/index.html"
