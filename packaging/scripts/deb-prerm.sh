
# remove, upgrade NEW-VERSION, deconfigure, failed-upgrade. In an upgrade everything
# goes on: the new package restarts the agent, and streams keep the binary that they run.
[ "$1" = remove ] || [ "$1" = deconfigure ] || exit 0

refuse_while_moving
if systemd_runs; then
	deb-systemd-invoke stop berth.socket berth.service berth-placement.service >/dev/null || :
fi
take_hook
take_rules
