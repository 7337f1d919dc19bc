package agent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/agent/inventory/providerconfig"
	"berth/internal/config"
)

const licences = `meta:
  schema_version: "1.0"
providers:
  - identification:
      uuid: $COMPUTE_NODE
    inventories:
      additional:
        - CUSTOM_LICENCE: {total: 4}
    traits:
      additional: [CUSTOM_RACK_7]
`

// TestProviderConfig_AFaultInAFileTakesNothingAway: a slip of the operator's is no
// reason to take out of Placement what the file gave; a file that is gone is.
func TestProviderConfig_AFaultInAFileTakesNothingAway(t *testing.T) {
	b := newGuardBench(t, config.Observe)
	dir := t.TempDir()
	c := b.a.config()
	c.Placement.ProviderConfigDir = dir
	b.a.conf.Store(&c)
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		b.a.loadProviderConfig(t.Context())
	}
	given := func() int { return len(b.a.providerConfig.Load().providers) }
	write("notes.txt", "not read")
	write("10-a.yaml", licences)
	if got := b.a.providerConfig.Load(); given() != 1 || got.faults != 0 {
		t.Fatalf("read %+v", got)
	}
	write("10-a.yaml", "providers: [\n")
	got := b.a.providerConfig.Load()
	if given() != 1 || got.faults != 1 || !strings.Contains(got.reasons[0].Message, "10-a.yaml") || got.reasons[0].Change == "" {
		t.Errorf("with a fault in it: %+v", got)
	}
	// So it is for an agent that starts anew.
	b.a.providerConfig.Store(nil)
	b.a.loadProviderConfig(t.Context())
	if given() != 1 || b.a.providerConfig.Load().faults != 1 {
		t.Errorf("after a restart: %+v", b.a.providerConfig.Load())
	}
	write("20-b.yaml", "also wrong")
	if got := b.a.providerConfig.Load(); given() != 1 || got.faults != 2 {
		t.Errorf("a file that was never sound: %+v", got)
	}
	write(".30-c.yaml", licences)
	if err := unix.Mkfifo(filepath.Join(dir, "40-d.yaml"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/zero", filepath.Join(dir, "50-e.yaml")); err != nil {
		t.Fatal(err)
	}
	write("60-f.yaml", licences+strings.Repeat("# 4567890\n", providerconfig.MaxBytes/10))
	if got := b.a.providerConfig.Load(); given() != 1 || got.faults != 5 {
		t.Errorf("hidden, no file, too large: %+v", got)
	}
	// A folder that cannot be read.
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	b.a.loadProviderConfig(t.Context())
	if got := b.a.providerConfig.Load(); given() != 1 || got.faults != 1 {
		t.Errorf("a folder that cannot be read: %+v", got)
	}
	if err := errors.Join(os.Remove(dir), os.Rename(dir+".away", dir)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"10-a.yaml", "20-b.yaml", "40-d.yaml", "50-e.yaml", "60-f.yaml"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	b.a.loadProviderConfig(t.Context())
	if got := b.a.providerConfig.Load(); given() != 0 || got.faults != 0 {
		t.Errorf("a file that is gone gives %+v", got)
	}
	in, _, _ := b.a.hardware.input()
	if len(in.Config) != 0 {
		t.Errorf("the reporter is told of %+v", in.Config)
	}
}
