package libvirt

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/driver"
	"berth/internal/fault"
)

const webUUID = "0311f003-5ee4-441b-9ce5-73e03c14c1f6"

// A run as libvirt 9.0.0 logs it.
const runLog = `2026-11-21 15:49:20.004+0000: starting up libvirt version: 9.0.0, package: 9.0.0-4+deb12u2 (Debian), qemu version: 10.0.2
LC_ALL=C \
/usr/bin/qemu-system-x86_64 \
-name guest=web,debug-threads=on \
-uuid ` + webUUID + ` \
-msg timestamp=on
`

func ends(reason string) string {
	return "2026-11-21T15:49:26.808953Z qemu-system-x86_64: terminating on signal 15 from pid 10 (libvirtd)\n" +
		"2026-11-21 15:49:27.010+0000: shutting down, reason=" + reason + "\n"
}

func TestLastEnd_IsWhatLibvirtWroteOfTheLastRun(t *testing.T) {
	for name, tt := range map[string]struct {
		log, rotated string
		want         driver.Reason
		kind         fault.Kind
	}{
		"migrated":                        {log: runLog + ends("migrated"), want: driver.ReasonMigrated},
		"destroyed":                       {log: runLog + ends("destroyed"), want: driver.ReasonDestroyed},
		"of two runs the last":            {log: runLog + ends("migrated") + runLog + ends("crashed"), want: driver.ReasonCrashed},
		"it runs again":                   {log: runLog + ends("migrated") + runLog, kind: fault.NotFound},
		"the daemon died before it wrote": {log: runLog, kind: fault.NotFound},
		"another domain of that name":     {log: strings.ReplaceAll(runLog, webUUID, "11111111-1111-4111-8111-111111111111") + ends("migrated"), kind: fault.NotFound},
		"the run began in the file before": {
			rotated: runLog, log: ends("migrated"), want: driver.ReasonMigrated,
		},
		"what a program says is no end": {log: runLog + "qemu: 2026-11-21 15:49:27.010+0000: shutting down, reason=migrated\n", kind: fault.NotFound},
		"no log":                        {kind: fault.NotFound},
	} {
		dir := t.TempDir()
		for file, text := range map[string]string{"web.log": tt.log, "web.log.0": tt.rotated} {
			if text == "" {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := lastEnd(dir, "web", webUUID)
		if got != tt.want || fault.KindOf(err) != tt.kind {
			t.Errorf("%s: %q, %v; want %q, %q", name, got, err, tt.want, tt.kind)
		}
	}
	if _, err := lastEnd(t.TempDir(), "../web", webUUID); !errors.Is(err, fault.Invalid) {
		t.Errorf("a name that is a path: %v", err)
	}
}

func TestLastEnd_OfALongLogReadsItsEnd(t *testing.T) {
	dir := t.TempDir()
	text := runLog + ends("crashed") + strings.Repeat("x\n", logEnough/2) + runLog + ends("migrated")
	if err := os.WriteFile(filepath.Join(dir, "web.log"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := lastEnd(dir, "web", webUUID); err != nil || got != driver.ReasonMigrated {
		t.Errorf("%q, %v", got, err)
	}
}
