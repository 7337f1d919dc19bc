package main

import (
	"io"
	"log/slog"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"berth/internal/config"
	"berth/internal/runtime"
	"berth/internal/screen"
	"berth/stream"
	"berth/systemd"
)

func (a *app) streamCommand() *cobra.Command {
	c := group(&cobra.Command{
		Use:   "stream",
		Short: "The forwarding processes of migrations",
		Long: `Each live migration has a process of its own on both hosts, which carries libvirt's
and QEMU's connections between them. The agents start and end it; it outlives their
restarts.`,
	})
	c.AddCommand(a.streamRunCommand(), a.streamListCommand())
	return c
}

func (a *app) streamRunCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "run DIR",
		Short: "Be the process of the stream whose folder is DIR (run by the agent)",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			// It has no terminal, and what takes its words may be gone.
			signal.Ignore(syscall.SIGPIPE, syscall.SIGHUP)
			unix.Umask(0o077)
			return stream.Run(cmd.Context(), args[0], stream.RunOptions{
				Log:   slog.New(newHandler(a.err, slog.LevelInfo)),
				Ready: func() { _ = systemd.Notifier{}.Ready("forwarding") }, // a manager that does not listen ends it by itself
			})
		},
	}
}

func (a *app) streamListCommand() *cobra.Command {
	dir := ""
	c := &cobra.Command{
		Use:   "list",
		Short: "List the streams of this host (needs no agent)",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir == "" {
				dir = stream.PackagedDir
				if conf, err := config.Load(a.config); err == nil {
					dir = filepath.Join(conf.Agent.RuntimeDir, "streams")
				}
			}
			m, err := stream.NewManager(dir, nil, &runtime.System{})
			if err != nil {
				return err
			}
			ids, err := m.Find("")
			if err != nil {
				return err
			}
			type line struct {
				stream.Status
				Error string `json:"error,omitempty"`
			}
			lines := []line{}
			for _, id := range ids {
				st, err := m.Status(cmd.Context(), id)
				l := line{Status: st}
				if err != nil {
					l.ID, l.Error = id, err.Error()
				}
				lines = append(lines, l)
			}
			return a.print(map[string]any{"streams": lines}, func(w io.Writer) {
				screen.Row(w, "MIGRATION", "ATTEMPT", "ROLE", "PEER", "PID", "OPEN", "SENT", "RECEIVED", "IDLE", "REMARK")
				for _, l := range lines {
					var sent, received uint64
					for _, c := range l.Channels {
						sent += c.Sent
						received += c.Received
					}
					remark := l.Error
					if remark == "" {
						remark = l.LastRefusal
					}
					screen.Row(w, l.Migration, l.Attempt, l.Role, l.Peer, l.PID, l.Open, sent, received, l.Idle.Round(time.Millisecond), remark)
				}
			})
		},
	}
	c.Flags().StringVar(&dir, "dir", "", "`folder` of streams (default: streams in runtime_dir)")
	return c
}
