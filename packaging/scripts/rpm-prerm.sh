
# $1: how many versions will be left; 0 is a removal.
[ "$1" = 0 ] || exit 0

refuse_while_moving
if systemd_runs; then
	systemctl stop berth.socket berth.service berth-placement.service || :
fi
systemctl --no-reload disable berth.socket berth.service berth-placement.service >/dev/null 2>&1 || :
take_hook
