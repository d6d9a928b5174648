#!/usr/bin/env bash
# Prints the path of a Traefik binary on stdout; everything else goes to stderr.
#
#   TRAEFIK_BIN      an installed Traefik to use instead of building one
#   HOMENODE_CACHE   where to keep the built one (default: .cache in the repository)
#
# The version is the one that go.mod beside this file names. Once its modules
# are downloaded the build needs no network (GOPROXY=off works).
set -euo pipefail
exec 3>&1 1>&2

readonly package=github.com/traefik/traefik/v3/cmd/traefik
readonly report_every=15 # seconds, where no terminal shows every step

say() { echo "traefik: $*"; }

# Follows `go build -v`: package names are counted, anything else is shown.
# usage: show_progress ABOUT
show_progress() {
  local about=$1 line compiled=0 last=$SECONDS
  while IFS= read -r line; do
    case $line in
      '' | *[[:space:]]*) echo "$line" && continue ;;
      *) compiled=$((compiled + 1)) ;;
    esac
    if [ -t 2 ]; then
      printf '\r\033[Ktraefik: compiled %d packages of about %d, %d s' "$compiled" "$about" "$SECONDS"
    elif [ $((SECONDS - last)) -ge $report_every ]; then
      say "compiled $compiled packages of about $about, $SECONDS s"
      last=$SECONDS
    fi
  done
  [ ! -t 2 ] || echo
  say "compiled $compiled packages in $SECONDS s"
}

if [ -n "${TRAEFIK_BIN:-}" ]; then
  if ! "$TRAEFIK_BIN" version; then
    say "TRAEFIK_BIN=$TRAEFIK_BIN does not run; unset it to build Traefik from its module"
    exit 1
  fi
  command -v "$TRAEFIK_BIN" >&3
  exit
fi

module=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=$(sed -n 's|^[[:space:]]*github.com/traefik/traefik/v3 v\([^ ]*\).*|\1|p' "$module/go.mod")
cache=${HOMENODE_CACHE:-$module/../../.cache}/traefik-v$version
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
binary=$cache/traefik

# Of several runs one builds and the others wait for it. Without flock (macOS)
# two may build; the rename at the end keeps the result whole in any case.
if [ ! -x "$binary" ] && command -v flock >/dev/null; then
  exec 9>"$cache/lock"
  flock --nonblock 9 || { say "waiting for another build to end"; flock 9; }
fi

if [ ! -x "$binary" ]; then
  say "building v$version into $cache, once; about 6 minutes on 2 cores when nothing is cached"
  cd "$module"
  export GOWORK=off
  temporary=$(mktemp "$cache/traefik.XXXXXX")
  trap 'rm -f "$temporary"' EXIT
  about=$(go list -deps "$package" | wc -l | tr -d ' ')
  go build -v -o "$temporary" -ldflags "-X github.com/traefik/traefik/v3/pkg/version.Version=$version" "$package" 2>&1 |
    show_progress "$about"
  chmod 755 "$temporary"
  mv "$temporary" "$binary"
  say "built $binary"
fi
echo "$binary" >&3
