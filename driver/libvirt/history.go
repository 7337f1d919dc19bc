package libvirt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"berth/driver"
	"berth/internal/fault"
)

// qemuLogs is where libvirt keeps the log of each domain (qemuDomainLogContext); a run
// begins there with "starting up libvirt version", QEMU's command line, and ends with
// "shutting down, reason=", in the words of virDomainShutoffReason: what the daemon
// forgets when it restarts. Seen with 9.0.0.
const qemuLogs = "/var/log/libvirt/qemu"

// logEnough is how much is read of a log: virtlogd begins another file after 2 MiB.
const logEnough = 4 << 20

var (
	runBegins = regexp.MustCompile(`^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+\+0000: starting up libvirt version: `)
	runEnds   = regexp.MustCompile(`^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+\+0000: shutting down, reason=([a-z ]+)$`)
)

var _ driver.Historian = (*Driver)(nil)

// LastEnd implements driver.Historian.
func (d *Driver) LastEnd(ctx context.Context, uuid string) (driver.Reason, error) {
	v, err := d.Domain(ctx, uuid)
	if err != nil {
		return "", err
	}
	dir := d.o.LogDir
	if dir == "" {
		dir = qemuLogs
	}
	reason, err := lastEnd(dir, v.Name, uuid)
	if err != nil {
		return "", fault.New(fault.KindOf(err), "read how domain %s ended: %w", v.Name, err)
	}
	return reason, nil
}

// lastEnd reads a domain's logs; the file before the present one has the run's begin
// where virtlogd has changed files since.
func lastEnd(dir, name, uuid string) (driver.Reason, error) {
	if name == "" || strings.Contains(name, "/") {
		return "", fault.New(fault.Invalid, "name %q", name)
	}
	var text strings.Builder
	for _, file := range []string{name + ".log.0", name + ".log"} {
		part, err := tail(filepath.Join(dir, file))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return "", fault.New(fault.Unavailable, "%w", err)
		}
		text.WriteString(part)
	}
	ended, err := lastRun(strings.Split(text.String(), "\n"), uuid)
	if err != nil {
		return "", err
	}
	return ended, nil
}

// lastRun gives why the last run in a log ended.
func lastRun(lines []string, uuid string) (driver.Reason, error) {
	begin := -1
	for i, line := range lines {
		if runBegins.MatchString(line) {
			begin = i
		}
	}
	if begin < 0 {
		return "", fault.New(fault.NotFound, "its log has no run")
	}
	own, end := false, ""
	for _, line := range lines[begin:] {
		own = own || strings.TrimSuffix(line, ` \`) == "-uuid "+uuid
		if m := runEnds.FindStringSubmatch(line); m != nil {
			end = m[1]
		}
	}
	switch {
	case !own:
		return "", fault.New(fault.NotFound, "the last run in its log is another domain's")
	case end == "":
		return "", fault.New(fault.NotFound, "its log has no end of the last run")
	}
	return driver.Reason(end), nil
}

// tail is a file's end, of whole lines where it is longer than logEnough.
func tail(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.Size() > logEnough {
		if _, err := f.Seek(-logEnough, io.SeekEnd); err != nil {
			return "", fmt.Errorf("%s: %w", path, err)
		}
	}
	data, err := io.ReadAll(io.LimitReader(f, logEnough))
	return string(data), err
}
