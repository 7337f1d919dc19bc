#!/bin/sh
# First what the deb's and the rpm's scripts share, then the occasions of one of them.
# Nothing here touches a guest, a stream or libvirtd, asks a question, or fails for want
# of a running service manager: an image is built without one.
set -e

hook=/etc/libvirt/hooks/qemu.d/50-berth
shipped=/usr/share/berth/libvirt-hook
# The hook as it was put there last: what differs from it is somebody's own work.
last=/var/lib/berth/libvirt-hook

# put_hook installs libvirt's hook, or renews it. One that was edited stays, and so does
# its absence where it was taken away: either is somebody's decision.
put_hook() {
	if { [ ! -e "$last" ] && [ ! -e "$hook" ]; } || { [ -e "$hook" ] && cmp -s "$hook" "$last"; }; then
		mkdir -p "${hook%/*}"
		# libvirt runs all that it finds in that folder, half-written or not.
		cp "$shipped" "${hook%/*/*}/.50-berth.new"
		chmod 0755 "${hook%/*/*}/.50-berth.new"
		mv -f "${hook%/*/*}/.50-berth.new" "$hook"
	elif [ ! -e "$hook" ]; then
		echo "berth: there is no $hook, so libvirt lets guests start unasked; to have it back, copy $shipped there" >&2
		return 0
	elif ! cmp -s "$hook" "$shipped"; then
		echo "berth: $hook was edited, and stays; compare it with $shipped" >&2
		return 0
	fi
	mkdir -p "${last%/*}"
	chmod 0700 "${last%/*}"
	cp "$shipped" "$last"
}

# take_hook takes it away: without the binary it would refuse guests. An edited one is
# kept where libvirt does not look.
take_hook() {
	if [ -e "$hook" ] && ! cmp -s "$hook" "$last" && ! cmp -s "$hook" "$shipped"; then
		mkdir -p "${last%/*}"
		cp "$hook" "$last.edited"
		echo "berth: $hook was edited; it is kept as $last.edited" >&2
	fi
	rm -f "$hook" "$last"
}

rules=/etc/apparmor.d/abstractions/berth-stream
guests=/etc/apparmor.d/local/abstractions/libvirt-qemu
line='include <abstractions/berth-stream>'

# put_rules has the profile of every guest include the rules for streams. Guests take
# them when they start.
put_rules() {
	[ -e "$rules" ] || return 0
	[ -e "$guests" ] && grep -qxF "$line" "$guests" && return 0
	mkdir -p "${guests%/*}"
	# The last line of somebody's may have no end.
	[ ! -s "$guests" ] || [ -z "$(tail -c 1 "$guests")" ] || echo >>"$guests"
	printf '%s\n' "$line" >>"$guests"
}

# take_rules must come before the rules go: a profile that includes what is not there
# cannot be read, and no guest would start. The file stays, since libvirt's own rules
# want it.
take_rules() {
	[ -e "$guests" ] || return 0
	# 1 is of a file in which nothing else stands; more is a disk that is full.
	grep -vxF "$line" "$guests" >"$guests.berth-new" || [ $? -eq 1 ]
	# In place: owner and mode are the file's own.
	cat "$guests.berth-new" >"$guests"
	rm -f "$guests.berth-new"
	[ -s "$guests" ] || [ -e /etc/apparmor.d/abstractions/libvirt-qemu ] || rm -f "$guests"
}

# systemd_runs says whether there is a service manager to be told.
systemd_runs() { [ -d /run/systemd/system ]; }

# configured says whether the agent that was just installed would take its configuration. One
# that it refuses would end it; the agent that runs took it, and goes on.
configured() {
	berth config check >/dev/null 2>&1 && return 0
	echo "berth: the configuration has a fault (berth config check tells), so the agent is not restarted; when it is mended: systemctl restart berth" >&2
	return 1
}

# make_folders makes the group and the folder of the socket.
make_folders() {
	systemd-sysusers berth.conf
	# In an image that is being built parts of it may be missing; a boot makes them.
	systemd-tmpfiles --create berth.conf || :
}

# refuse_while_moving stops a removal while a guest's memory is on its way through a stream: no
# agent would be left to give the guest to one of its hosts. Moves of guests that are off are
# not seen here: they wait for the agent's return.
refuse_while_moving() {
	moving=
	for dir in /run/berth/streams/*/; do
		[ -d "$dir" ] && moving="$moving ${dir#/run/berth/streams/}"
	done
	[ -n "$moving" ] || return 0
	echo "berth: not removed, since guests are moving from or to this host:$moving" >&2
	echo "berth: wait for the end (berth migration list), or give the moves up (berth migration abort MIGRATION); a folder in /run/berth/streams of which berth stream list says that it is dead may be deleted" >&2
	exit 1
}
