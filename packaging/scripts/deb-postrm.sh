
# forget_guests takes Berth's element out of the metadata of every guest, of running
# ones too, which do not notice. Only libvirt can, and one that hangs is not waited for.
forget_guests() {
	command -v virsh >/dev/null || return 0
	ask() { LC_ALL=C timeout 30 virsh -q -c qemu:///system "$@"; }
	silent() { echo "berth: libvirt does not answer, so its guests keep Berth's metadata; it does no harm, and goes by: virsh metadata GUEST urn:berth:domain:1 --remove --config" >&2; }
	if ! all=$(ask list --all --uuid 2>/dev/null); then
		[ ! -e /etc/libvirt/qemu ] || silent
		return 0
	fi
	for guest in $all; do
		answer=0
		ask domstate "$guest" >/dev/null 2>&1 || answer=$?
		if [ "$answer" -eq 124 ]; then # by timeout(1)
			silent
			return 0
		fi
		ask dumpxml "$guest" 2>/dev/null | grep -q urn:berth:domain:1 ||
			ask dumpxml --inactive "$guest" 2>/dev/null | grep -q urn:berth:domain:1 || continue
		case $(ask domstate "$guest" 2>/dev/null) in
		'shut off' | crashed | '') running= ;;
		*) running=--live ;;
		esac
		# A guest that is only running has no definition to change.
		ask metadata "$guest" urn:berth:domain:1 --remove --config >/dev/null 2>&1 || :
		[ -z "$running" ] || ask metadata "$guest" urn:berth:domain:1 --remove --live >/dev/null 2>&1 || :
	done
}

# remove, purge, upgrade, failed-upgrade, abort-install, abort-upgrade, disappear.
case "$1" in
remove)
	if systemd_runs; then
		systemctl --system daemon-reload || :
	fi
	;;
purge)
	for unit in berth.socket berth.service berth-placement.service; do
		deb-systemd-helper purge "$unit" >/dev/null || :
		deb-systemd-helper unmask "$unit" >/dev/null || :
	done
	forget_guests
	# Ledger, journal, keys, the audit log and the database of an embedded Placement; guests'
	# disks are nowhere here. Group and user stay: their numbers must not become others'.
	rm -rf /var/lib/berth /var/lib/berth-placement /var/log/berth /run/berth /run/berth-placement /etc/berth
	;;
esac
