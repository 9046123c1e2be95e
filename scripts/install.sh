#!/usr/bin/env bash
# Installs the named tools that this machine lacks: redis (redis-server), gcc (a C compiler, which the
# race detector and Vale need), curl, prometheus (with promtool), chromium,
# and qemu (qemu-i386, for programs that the kernel doesn't run).
set -euo pipefail

missing=()
for tool in "$@"; do
	case $tool in
	redis) command=redis-server ;;
	gcc) command=$(go env CC) ;;
	curl) command=curl ;;
	chromium) # or a browser that is nearly the same
		command=chromium
		for other in chromium-browser google-chrome; do
			if command -v "$other" >/dev/null; then command=$other; fi
		done
		;;
	prometheus) command=promtool ;;
	qemu) command=qemu-i386 ;;
	*) echo "install.sh: unknown tool $tool: write redis, gcc, curl, prometheus, chromium or qemu" >&2 && exit 1 ;;
	esac
	command -v "$command" >/dev/null || missing+=("$tool")
done

if ((${#missing[@]})); then
	echo "installing: ${missing[*]}"
	if command -v apt-get >/dev/null; then
		sudo=()
		if ((EUID != 0)); then sudo=(sudo); fi
		"${sudo[@]}" apt-get update -qq
		packages=()
		for tool in "${missing[@]}"; do
			case $tool in
			redis) packages+=(redis-server) ;;
			gcc) packages+=(gcc libc6-dev) ;;
			curl) packages+=(curl) ;;
			qemu) packages+=(qemu-user) ;;
			chromium) packages+=(chromium fonts-dejavu-core) ;;
			prometheus) # the programs alone, because the package also starts a service
				unpacked=$(mktemp -d)
				chmod 755 "$unpacked" # apt downloads as another user
				if ((EUID == 0)) && id _apt >/dev/null 2>&1; then chown _apt "$unpacked"; fi
				(cd "$unpacked" && apt-get download -qq prometheus && dpkg-deb -x prometheus_*.deb programs)
				"${sudo[@]}" install -m 755 "$unpacked"/programs/usr/bin/{prometheus,promtool} /usr/local/bin/
				rm -r "$unpacked"
				;;
			esac
		done
		if ((${#packages[@]})); then # reinstalled, because a package can be there without its program
			"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends --reinstall "${packages[@]}"
		fi
	elif [[ ${missing[*]} == chromium ]]; then
		echo "there is no apt-get to install chromium with, so the tests of the status page are skipped" >&2
	elif command -v brew >/dev/null; then
		brew install "${missing[@]}"
	else
		echo "please install ${missing[*]} with this machine's package manager (redis 6.2 or later, or valkey with a redis-server command) and run this again" >&2
		exit 1
	fi
fi
