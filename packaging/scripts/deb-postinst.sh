
# configure OLD-VERSION, or what was begun is called off and all is as it was.
case "$1" in
configure | abort-upgrade | abort-remove | abort-deconfigure) ;;
*) exit 0 ;;
esac

make_folders
put_hook
put_rules

# The administrator's own choice of what starts at boot outlives removals and upgrades.
for unit in berth.socket berth.service; do
	deb-systemd-helper unmask "$unit" >/dev/null || :
	if deb-systemd-helper --quiet was-enabled "$unit"; then
		deb-systemd-helper enable "$unit" >/dev/null || :
	else
		deb-systemd-helper update-state "$unit" >/dev/null || :
	fi
done
# Nobody's choice yet: only noted, so that a purge takes it away.
deb-systemd-helper update-state berth-placement.service >/dev/null || :
if systemd_runs; then
	systemctl --system daemon-reload || :
	# The socket is held by the manager, over the restart too. A configuration that is
	# wrong is no reason to leave the package half installed; the journal has it.
	deb-systemd-invoke start berth.socket >/dev/null || :
	if [ "$1" = configure ] && [ -n "$2" ]; then
		deb-systemd-invoke try-restart berth-placement.service >/dev/null || :
		! configured || deb-systemd-invoke try-restart berth.service >/dev/null || :
	fi
	# After a removal too, of which the configuration was left. One that is disabled is not.
	deb-systemd-invoke start berth.service >/dev/null || :
fi
