package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth/agent/inventory"
	"berth/agent/inventory/providerconfig"
	"berth/internal/fault"
	"berth/internal/store"
)

// keyProviderConfig is the record of each provider config file as it was when it
// was last sound, by name.
const keyProviderConfig = "provider_config"

// providerConfig is what Nova's provider config files say. It is replaced, never
// changed.
type providerConfig struct {
	providers []inventory.ProviderConfig
	reasons   []fault.Reason // files with a fault, and remarks
	faults    int            // how many of the reasons are faults
}

// loadProviderConfig reads the folder. A file with a fault, or that cannot be read,
// counts as it last was: what it gave is not taken out of Placement because of a
// slip. A file that is not there any more gives nothing.
func (a *Agent) loadProviderConfig(ctx context.Context) {
	dir := a.config().Placement.ProviderConfigDir
	before := map[string]string{}
	if raw, found, err := a.db.Get(ctx, store.BucketAgent, keyProviderConfig); err == nil && found {
		// What does not decode is as none: then a file with a fault gives nothing.
		_ = json.Unmarshal(raw, &before)
	}
	var out providerConfig
	blame := func(err error) {
		out.faults++
		out.reasons = append(out.reasons, fault.Reason{
			Code: "provider_config", Message: strings.ReplaceAll(err.Error(), "\n", "; "), Change: "correct the file and reload the agent; until then it counts as it last was",
		})
	}
	now, err := readProviderConfig(dir, before, blame)
	if err != nil {
		blame(err)
		now = before
	}
	sound := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		file, err := providerconfig.Parse(name, []byte(now[name]))
		if err != nil {
			blame(err)
			last, known := before[name]
			if !known {
				continue
			}
			now[name] = last
			if file, err = providerconfig.Parse(name, []byte(last)); err != nil {
				continue // of a version that took it
			}
		}
		sound[name] = now[name]
		out.providers = append(out.providers, file.Providers...)
		for _, r := range file.Remarks {
			out.reasons = append(out.reasons, fault.Reason{Code: r.Code, Message: r.Message, Change: r.Change})
		}
	}
	if !maps.Equal(sound, before) {
		a.hardware.keep(ctx, keyProviderConfig, sound)
	}
	a.providerConfig.Store(&out)
	for _, r := range out.reasons {
		a.log.Warn("provider config file", "folder", dir, "code", r.Code, "reason", r.Message)
	}
}

// readProviderConfig gives the text of each *.yaml, as Nova looks for them (Python's
// glob leaves out what begins with a dot). One that cannot be read is blamed and
// given as it last was.
func readProviderConfig(dir string, before map[string]string, blame func(error)) (map[string]string, error) {
	out := map[string]string{}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.IsDir() || !strings.HasSuffix(e.Name(), ".yaml") || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		text, err := readRegular(filepath.Join(dir, e.Name()), providerconfig.MaxBytes)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			blame(err)
			last, known := before[e.Name()]
			if !known {
				continue
			}
			text = []byte(last)
		}
		out[e.Name()] = string(text)
	}
	return out, nil
}

// readRegular reads a regular file, or what a link leads to, of at most so many
// bytes: a pipe would keep its reader for ever.
func readRegular(path string, most int64) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: is no regular file", path)
	case info.Size() > most:
		return nil, fmt.Errorf("%s: %d bytes, want at most %d", path, info.Size(), most)
	}
	return os.ReadFile(path)
}
