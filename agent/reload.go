package agent

import (
	"context"
	"strings"

	"berth/internal/config"
	"berth/internal/fault"
	"berth/migration/options"
	"berth/systemd"
	"berth/topology"
)

// runReload takes a new configuration each time that it is asked to.
func (a *Agent) runReload(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.opt.Reload:
			a.notify(systemd.Notifier{}.Reloading())
			a.reload()
			a.notify(systemd.Notifier{}.Ready(a.health.line()))
		}
	}
}

// reload takes what can change without a restart, and names what cannot. A
// configuration with a fault changes nothing.
func (a *Agent) reload() {
	read, flavors, given, err := a.read()
	a.faults.note(partFiles, err)
	a.faults.note(partCertificate, certificateNotTaken(a.config().PKI, a.identity, a.rt.Now()))
	if err != nil {
		a.log.Error("configuration not taken: it has faults, and the old one stands", "error", err)
		return
	}
	// Measured against what the process was started with, so that a key that needs
	// a restart is named at each reload until it gets one.
	for _, c := range config.Diff(a.config(), read) {
		if c.Reloadable {
			a.log.Info("configuration changed", "key", c.Key)
		} else {
			a.log.Warn("configuration changed, and needs a restart of the agent (which touches no guest)", "key", c.Key)
		}
	}
	next := config.Reload(a.config(), read)
	a.conf.Store(&next)
	a.flavors.Store(&flavors)
	a.faults.note(partFlavors, nil)
	a.grants.Store(given)
	a.faults.note(partRights, nil)
	if a.opt.Level != nil {
		// Validate has held it against the four words there are.
		_ = a.opt.Level.UnmarshalText([]byte(next.Agent.LogLevel))
	}
	a.loadProviderConfig(context.Background())
	a.peers.forget()
	a.hardware.apply()
	a.reporter.Kick()
	a.log.Info("configuration read again", "flavors", len(flavors))
}

// read reads every file that a reload takes.
func (a *Agent) read() (c config.Config, flavors map[string]topology.Flavor, given *grants, err error) {
	if c, err = config.Load(a.opt.ConfigPath); err != nil {
		return c, nil, nil, err
	}
	if flavors, err = readFlavors(c.Agent.FlavorsDir); err != nil {
		return c, nil, nil, err
	}
	given, err = readGrants(c.Rights, machineAccounts())
	return c, flavors, given, err
}

// readFlavors reads every flavor file of a folder, strictly: beside an error it gives
// those that could be read.
func readFlavors(dir string) (map[string]topology.Flavor, error) {
	out := map[string]topology.Flavor{}
	err := config.DecodeDir(dir, func(path string, into func(any) error) error {
		var f topology.Flavor
		if err := into(&f); err != nil {
			return err
		}
		if err := f.Validate(); err != nil {
			return fault.Refuse(fault.Invalid, "read flavors", fault.Reason{Code: "flavor", Message: path + ": " + strings.ReplaceAll(err.Error(), "\n", "; "), Change: "correct the file"})
		}
		if _, wrong := options.FromSpecs(f.ExtraSpecs); len(wrong) > 0 {
			for i := range wrong {
				wrong[i].Message = path + ": extra_specs: " + wrong[i].Have + ": " + wrong[i].Message
			}
			return fault.Refuse(fault.Invalid, "read flavors", wrong...)
		}
		if _, twice := out[f.Name]; twice {
			return fault.Refuse(fault.Invalid, "read flavors", fault.Reason{Code: "flavor", Message: path + ": another file has a flavor named " + f.Name, Change: "give one of them another name"})
		}
		out[f.Name] = f
		return nil
	})
	if err != nil {
		return out, fault.New(fault.KindOf(err), "read flavors: %w", err)
	}
	return out, nil
}
