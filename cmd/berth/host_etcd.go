package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"berth/fleet/etcd"
	"berth/internal/config"
)

func (a *app) hostEtcdRoles() *cobra.Command {
	var fencers []string
	cmd := &cobra.Command{
		Use: "etcd-roles HOST...", Short: "Print the etcdctl commands that keep hosts to their own records in etcd", Args: cobra.MinimumNArgs(1),
		Long: `Print the etcdctl commands that make a user and a role for each host, for sites with
[fleet] etcd. Nothing is asked and nothing is changed. A host's role lets it write its own
record, lease and return, those of instances and evacuations, and the value by which a store
that was emptied or restored is recognised; --fence adds deaths, for hosts that fence others
or evacuate from them. etcd knows keys and not what is written, so a host can still write
another's instance: with the embedded Placement and --auth mtls it cannot.

The user is the host's name. etcd takes it from the CN of the host's certificate, or with
a password (etcdctl user passwd HOST) from [fleet] etcd_user and etcd_password_file. Before
` + "`etcdctl auth enable`" + ` there has to be a user root with the role root.`,
		Example: "  berth host etcd-roles host-a host-b host-c --fence host-c",
		RunE: func(_ *cobra.Command, args []string) error {
			for _, name := range slices.Concat(args, fencers) {
				if _, err := config.ParseHolder("host:" + name); err != nil {
					return err
				}
			}
			for _, f := range fencers {
				if !slices.Contains(args, f) {
					return misused("--fence %s: name it among the hosts too", f)
				}
			}
			_, err := fmt.Fprintln(a.out, strings.Join(etcd.RoleCommands(args, fencers), "\n"))
			return err
		},
	}
	cmd.Flags().StringArrayVar(&fencers, "fence", nil, "a `host` that may write that another is dead; may be given again")
	return cmd
}
