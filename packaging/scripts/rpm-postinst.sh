
# $1: how many versions are installed now; 1 is an installation, 2 an upgrade.
make_folders
put_hook
if [ "$1" = 1 ]; then
	# What starts at boot is the distribution's choice.
	systemctl --no-reload preset berth.socket berth.service >/dev/null 2>&1 || :
fi
if systemd_runs; then
	systemctl --system daemon-reload || :
	if [ "$1" != 1 ]; then
		systemctl try-restart berth-placement.service || :
		! configured || systemctl try-restart berth.service || :
	fi
fi
