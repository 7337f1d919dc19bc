package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"

	"github.com/spf13/cobra"

	"berth/fleet/embedded"
	"berth/internal/runtime"
	"berth/placement"
	"berth/systemd"
)

func (a *app) placementCommand() *cobra.Command {
	o := placement.Options{}
	var level string
	var fencers []string
	cmd := &cobra.Command{
		Use:   "placement",
		Short: "Run the embedded Placement: OpenStack's API, one file or memory",
		Long: `Serve OpenStack Placement's API for one machine, a lab or a small fleet. Agents
find it by [placement] url. Without --db everything is kept in memory. The fleet's
records, by which guests of a dead host are evacuated, are kept beside, unless the
hosts have [fleet] etcd.

On loopback and unix sockets no certificate is asked for (--auth none); elsewhere
clients show one (--auth mtls): a host's may write its own provider and the
consumers that touch it, and with the right conduct (berth pki host NAME --right
conduct, or --conductor NAME here) those of moves between two others; an operator's
everything. In the fleet's records a host writes what it has itself, and with the right
fence (--right fence, or --fencer NAME here) that another host is dead.`,
		Example: `  berth placement --listen 127.0.0.1:8778
  berth placement --listen 192.0.2.10:8778 --db /var/lib/berth/placement.db \
      --ca /etc/berth/pki/ca.crt --cert /etc/berth/pki/host.crt --key /etc/berth/pki/host.key`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			// Only what this command line says: BERTH_CERT is an operator's, for asking.
			for name, to := range map[string]*string{"cert": &o.Cert, "key": &o.Key, "ca": &o.CA} {
				if flag := cmd.Flags().Lookup(name); flag.Changed {
					*to = flag.Value.String()
				}
			}
			if !strings.HasPrefix(o.Listen, "unix:/") {
				if _, _, err := net.SplitHostPort(o.Listen); err != nil {
					return misused("--listen %q: want HOST:PORT or unix:/path", o.Listen)
				}
			}
			rt := &runtime.System{}
			defer rt.Wait()
			log, err := newLogger(a.err, level)
			if err != nil {
				return err
			}
			o.Runtime, o.Logger = rt, log
			o.Beside = func(ctx context.Context, db placement.Store, rt runtime.Runtime, log *slog.Logger) (placement.Beside, error) {
				records, err := embedded.Open(ctx, db, rt, log)
				if err == nil {
					records.LetFence(fencers...)
				}
				return records, err
			}
			s, err := placement.New(o)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, s.Close()) }()
			ctx := cmd.Context()
			told := make(chan struct{})
			rt.Go("placement readiness", func() {
				defer close(told)
				select {
				case <-s.Ready():
					log.Info("placement is ready", "listen", s.Addr(), "db", o.DB)
					if err := (systemd.Notifier{}).Ready("serving on " + s.Addr()); err != nil {
						log.Warn("systemd was not told", "error", err)
					}
				case <-ctx.Done():
				}
			})
			return s.Run(ctx)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Listen, "listen", "127.0.0.1:8778", "`address` to serve on: host:port or unix:/path")
	f.StringVar(&o.DB, "db", "", "database `file` (default: memory)")
	f.StringVar(&o.Auth, "auth", "", "none, or mtls with --ca, --cert and --key (default: none on loopback and sockets, mtls elsewhere)")
	f.BoolVar(&o.Insecure, "insecure", false, "allow --auth none off loopback: everybody who reaches it may write")
	f.StringVar(&o.Policy, "policy", placement.PolicyDefault, "rules for tokens with --auth none: default (OpenStack's 8.0.0), scoped (an admin must be of the system) or open (every token)")
	f.StringArrayVar(&o.Conductors, "conductor", nil, "`HOST` whose agent conducts moves between others that share nothing, with --auth mtls; may be given again")
	f.StringArrayVar(&fencers, "fencer", nil, "`HOST` that may write in the fleet's records that another host is dead, with --auth mtls; may be given again")
	f.StringVar(&level, "log-level", "info", "debug, info, warn or error")
	cmd.AddCommand(a.placementBackupCommand(), a.placementRestoreCommand())
	return cmd
}
