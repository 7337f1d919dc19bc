package main

import (
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"berth/agent"
	"berth/internal/config"
	"berth/internal/runtime"
	"berth/systemd"
)

func (a *app) agentCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "agent",
		Short: "Run the agent of this host",
		Long: `Run the agent in the foreground; systemd starts it as berth.service. It begins in
mode observe: it reads and shows, and writes nothing. Set mode = "manage" in
` + config.DefaultPath + ` when you are ready.

It starts without libvirt and without Placement, says so in ` + "`berth status`" + `, and
connects when they come. SIGHUP reads the configuration again. Stopping it never
touches a guest.`,
		Example: "  berth agent\n  berth agent --config /etc/berth/second.toml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			started := processStart()
			c, err := config.Load(a.config)
			if err != nil {
				return err
			}
			level := new(slog.LevelVar)
			v, err := parseLevel(c.Agent.LogLevel)
			if err != nil {
				return err
			}
			level.Set(v)
			log := slog.New(newHandler(a.err, level))
			slog.SetDefault(log)
			listeners, err := systemd.Listeners()
			if err != nil {
				return err
			}
			reload := make(chan os.Signal, 1)
			signal.Notify(reload, syscall.SIGHUP)
			defer signal.Stop(reload)
			rt := &runtime.System{}
			defer rt.Wait()
			return agent.Run(cmd.Context(), agent.Options{
				Config: c, ConfigPath: a.config, Level: level, Logger: log, Runtime: rt, Started: started,
				Driver: a.newDriver, Reload: reload, Listeners: listeners,
			})
		},
	}
}

// processStart is about when the process began: the start of main is some
// milliseconds after exec, in which the Go runtime and package variables came up.
func processStart() time.Time {
	st, err := os.Stat("/proc/self")
	if err != nil || time.Since(st.ModTime()) > time.Minute || time.Since(st.ModTime()) < 0 {
		return time.Now()
	}
	return st.ModTime()
}
