
# $1: how many versions are left. An rpm knows no purge: /var/lib/berth, /var/log/berth and
# edited configuration stay, and so does what guests' metadata says of Berth.
if systemd_runs; then
	systemctl --system daemon-reload || :
fi
