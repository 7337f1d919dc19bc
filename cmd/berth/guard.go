package main

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/spf13/cobra"

	"berth/agent/api"
	"berth/agent/guard"
	"berth/internal/config"
	"berth/internal/runtime"
	"berth/internal/screen"
)

// errGuardRefused ends `berth guard` with guard.ExitRefuse; why was said already.
var errGuardRefused = errors.New("refused by the guard")

// guardCommand is what libvirt's hook runs; it is not for people.
func (a *app) guardCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "guard GUEST OPERATION SUB-OPERATION EXTRA",
		Short:  "Answer libvirt's qemu hook (run by packaging/hooks/qemu.d/50-berth)",
		Hidden: true,
		Args:   cobra.ArbitraryArgs,
		Long: `Answer libvirt's qemu hook: exit code 0 lets the guest start or arrive, 1 refuses it
with the reasons on standard error. The guest's document is read from standard
input; what is printed replaces it. Any other exit code means that nothing was
decided.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := config.Load(a.config)
			observing := err == nil && c.Agent.Mode == config.Observe
			if err != nil {
				// A configuration with a fault must not open the door: the folders are the
				// packaged ones then, and the policy is the careful one. The hook asks only
				// where the marker is, which may not be there.
				c = config.Default()
			}
			rt := &runtime.System{}
			code := guard.Hook{
				Files:    guard.Files{Dir: c.GuardDir(), Boot: rt.Boot().ID, State: c.Agent.StateDir},
				Arrivals: guard.Arrivals(c.Guard.Arrivals), Unmanaged: err == nil && !guard.Managed(c.Agent.StateDir), Observing: observing,
				Ask: func(ctx context.Context, call guard.Call) (guard.Answer, error) {
					client, err := api.NewClient(api.ClientOptions{Socket: c.Agent.SocketPath()})
					if err != nil {
						return guard.Answer{}, err
					}
					defer client.Close()
					return client.Guard(ctx, call)
				},
				// Beside libvirt's hooks, in its own folder of configuration.
				Definitions: filepath.Join(filepath.Dir(c.Guard.Hook), "..", "..", "qemu"),
				Runtime:     rt, In: a.in, Out: screen.Behind(a.out), Err: a.err,
			}.Run(cmd.Context(), args)
			if code != guard.ExitAllow {
				return errGuardRefused
			}
			return nil
		},
	}
}
