package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/agent/api"
	"berth/agent/bundle"
	"berth/agent/drawing"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/internal/screen"
	"berth/internal/version"
	"berth/placementclient/keystone"
)

func (a *app) debugCommand() *cobra.Command {
	cmd := group(&cobra.Command{Use: "debug", Short: "What somebody needs who looks into this host's troubles from elsewhere"})
	cmd.AddCommand(a.debugBundle())
	return cmd
}

// bundleTime bounds the making of a bundle: doctor alone may take doctorTime. Arbitrary.
const bundleTime = doctorTime + time.Minute

func (a *app) debugBundle() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "bundle",
		Short: "Write one archive of state, settings and logs, without secrets",
		Long: `Write an archive (tar, gzip) of what the agent says of itself: status, doctor, host,
claims, guests, moves, drains, audit, and the host's drawing. On the agent's own machine
also its settings, metrics, log and units, and facts of the machine; with --connect to
another only what that agent answers. What cannot be had is named in it: an agent that
is down is no reason to have none.

Secrets are left out: tokens, passwords, tickets and private keys, in documents by their
keys, in logs by how they look; and wherever they stand those that the settings and their
files, clouds.yaml and OS_* variables have. Names and addresses of guests and hosts are in
it: look through it before you give it away. The file can be read by you alone.`,
		Example: "  berth debug bundle\n  berth debug bundle --file /tmp/host-a.tar.gz\n  berth debug bundle -c host-b",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), bundleTime)
			defer cancel()
			return a.makeBundle(ctx, file, time.Now())
		},
	}
	cmd.Flags().StringVar(&file, "file", "", "where to write it (default: berth-HOST-TIME.tar.gz here); `file` must not exist")
	return cmd
}

func (a *app) makeBundle(ctx context.Context, file string, now time.Time) (err error) {
	name := strings.NewReplacer("/", "-", ":", "-").Replace(strings.Trim(a.connect, "/"))
	if name == "" {
		name, _ = os.Hostname() // a name is for people; without one the time does
	}
	folder := "berth-" + cmp.Or(name, "host") + "-" + now.UTC().Format("20060102-150405")
	file = cmp.Or(file, folder+".tar.gz")
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fault.Refuse(fault.Exists, "write a bundle", fault.Reason{Code: "file_exists", Message: file + " exists", Change: "name another with --file, or remove it"})
	}
	if err != nil {
		return misused("write a bundle: %w", err)
	}
	defer func() {
		err = errors.Join(err, out.Close())
		if err != nil {
			_ = os.Remove(file) // half an archive helps nobody
		}
	}()
	c, settings, configErr := config.Dump(a.config)
	here := a.connect == "" || strings.Contains(a.connect, "/")
	secrets, unread := secretsOf(ctx, c, here)
	b := bundle.New(out, folder, now, secrets)
	if unread != nil {
		b.Lacks("what a secret is, which is left out by how it looks alone", unread)
	}
	b.JSON("version.json", "the berth that made this", version.Get())
	a.answers(ctx, b)
	if here {
		machineFacts(ctx, b, c)
		if configErr != nil {
			b.Lacks("config.toml", configErr)
		} else {
			var text bytes.Buffer
			if err := config.WriteSettings(&text, settings); err != nil {
				return err
			}
			b.Text("config.toml", "the settings of "+a.config+" as they count", text.Bytes())
		}
	}
	if err := b.Close(); err != nil {
		return fault.New(fault.Internal, "write %s: %w", file, err)
	}
	made := madeBundle{File: file, Missing: append([]string{}, b.Missing()...)}
	if info, err := out.Stat(); err == nil {
		made.Bytes = info.Size()
	}
	return a.print(made, func(w io.Writer) {
		fmt.Fprintf(w, "%s: %s\n", made.File, size(made.Bytes))
		for _, m := range made.Missing {
			fmt.Fprintf(w, "  not in it: %s\n", m)
		}
	})
}

// secretsOf are the values that a bundle leaves out wherever they stand: those of the settings,
// of their files and of the cloud that they name, with what this program's variables and, where
// the agent runs here, those of its service say. With an error they are those that could be had.
func secretsOf(ctx context.Context, c config.Config, here bool) ([]string, error) {
	out, err := c.Secrets()
	o := keystone.Options{Cloud: c.Placement.Cloud, CloudsFile: c.Placement.CloudsFile}
	out = append(out, keystone.Secrets(o, os.Environ())...)
	if here { // by themselves: they may name another cloud
		environ, unread := serviceEnviron(ctx)
		out, err = append(out, keystone.Secrets(o, environ)...), errors.Join(err, unread)
	}
	return out, err
}

// serviceEnviron are the variables of the agent that systemd runs; none where it runs none.
func serviceEnviron(ctx context.Context) ([]string, error) {
	said, err := commandOutput(ctx, []string{"systemctl", "show", "--property=MainPID", "--value", "berth.service"})
	pid := strings.TrimSpace(string(said))
	if err != nil || pid == "" || pid == "0" {
		return nil, nil // there is no systemd to ask, and so no such agent
	}
	text, err := os.ReadFile(filepath.Join("/proc", pid, "environ"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // it has ended since
	}
	return strings.Split(string(text), "\x00"), err
}

// madeBundle is what was written.
type madeBundle struct {
	File    string   `json:"file"`
	Bytes   int64    `json:"bytes"`
	Missing []string `json:"missing"`
}

// answers adds what the agent says.
func (a *app) answers(ctx context.Context, b *bundle.Bundle) {
	c, err := a.dial()
	if err != nil {
		b.Lacks("what the agent says", err)
		return
	}
	defer c.Close()
	if _, err := c.Status(ctx); err != nil {
		b.Lacks("what the agent says", err)
		return
	}
	for _, part := range []struct {
		name, about string
		ask         func() (any, error)
	}{
		{"status.json", "berth status", func() (any, error) { return c.Status(ctx) }},
		{"doctor.json", "berth doctor", func() (any, error) { return c.Examine(ctx) }},
		{"host.json", "berth host show", func() (any, error) { return c.Host(ctx) }},
		{"hosts.json", "berth host list", func() (any, error) { return c.Hosts(ctx) }},
		{"claims.json", "berth claim list", func() (any, error) { return c.Claims(ctx) }},
		{"instances.json", "berth instance list, those too that are not shown", func() (any, error) { return c.AllInstances(ctx) }},
		{"migrations.json", "berth migration list", func() (any, error) { return c.Migrations(ctx) }},
		{"drains.json", "berth host drain-status", func() (any, error) { return c.Drains(ctx) }},
		{"audit.json", "berth audit", func() (any, error) { return c.Audit(ctx, api.AuditRequest{}) }},
	} {
		v, err := part.ask()
		if err != nil {
			b.Lacks(part.name, err)
			continue
		}
		b.JSON(part.name, part.about, v)
	}
	a.drawings(ctx, b, c)
}

// drawings add the host as berth host topology draws it.
func (a *app) drawings(ctx context.Context, b *bundle.Bundle, c *api.Client) {
	picture, err := pictureOf(ctx, c)
	if err != nil {
		b.Lacks("topology.txt", err)
		return
	}
	var text, svg bytes.Buffer
	if err := errors.Join(picture.Text(&text, drawing.Style{Width: screen.PipeColumns}), picture.SVG(&svg)); err != nil {
		b.Lacks("topology.txt", err)
		return
	}
	b.Text("topology.txt", "berth host topology", text.Bytes())
	b.Text("topology.svg", "the same for a browser", svg.Bytes())
}

// machineFacts add what this machine says of itself and of the agent.
func machineFacts(ctx context.Context, b *bundle.Bundle, c config.Config) {
	for _, f := range []struct{ name, path string }{
		{"os-release", "/etc/os-release"}, {"kernel", "/proc/version"}, {"command-line", "/proc/cmdline"}, {"meminfo", "/proc/meminfo"},
		{"mounts", "/proc/mounts"}, {"pressure-memory", "/proc/pressure/memory"}, {"pressure-io", "/proc/pressure/io"},
	} {
		text, err := os.ReadFile(f.path)
		if err != nil {
			b.Lacks("machine/"+f.name, err)
			continue
		}
		b.Text("machine/"+f.name, f.path, text)
	}
	for _, p := range []struct {
		name string
		argv []string
	}{
		{"log/berth", []string{"journalctl", "--no-pager", "-o", "short-iso", "-n", "20000", "-u", "berth.service"}},
		{"log/streams", []string{"journalctl", "--no-pager", "-o", "short-iso", "-n", "5000", "-u", "berth-stream*"}},
		{"log/libvirtd", []string{"journalctl", "--no-pager", "-o", "short-iso", "-n", "5000", "-u", "libvirtd.service"}},
		{"log/kernel", []string{"journalctl", "--no-pager", "-o", "short-iso", "-k", "-n", "2000"}},
		{"machine/units", []string{"systemctl", "--no-pager", "status", "berth.service", "berth.socket", "libvirtd.service"}},
		{"machine/clock", []string{"timedatectl"}},
	} {
		text, err := commandOutput(ctx, p.argv)
		if err != nil {
			b.Lacks(p.name, err)
			continue
		}
		b.Text(p.name, strings.Join(p.argv, " "), text)
	}
	if list, err := os.ReadDir(c.Agent.StateDir); err != nil {
		b.Lacks("machine/state", err)
	} else {
		var text strings.Builder
		for _, e := range list {
			if info, err := e.Info(); err == nil {
				fmt.Fprintf(&text, "%s %10d %s %s\n", info.Mode(), info.Size(), info.ModTime().UTC().Format(time.RFC3339), filepath.Join(c.Agent.StateDir, e.Name()))
			}
		}
		b.Text("machine/state", "files of "+c.Agent.StateDir+", not what is in them", []byte(text.String()))
	}
	if c.Metrics.Listen != "" {
		if text, err := scrape(ctx, "http://"+c.Metrics.Listen+"/metrics"); err != nil {
			b.Lacks("metrics", err)
		} else {
			b.Text("metrics", "what Prometheus would get", text)
		}
	}
}

// programTime bounds one program. Arbitrary.
const programTime = 30 * time.Second

// commandOutput is what a program prints. One that fails and prints all the same, as systemctl
// status does of a unit that is down, has answered.
func commandOutput(ctx context.Context, argv []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, programTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil && len(out) == 0 {
		return nil, fmt.Errorf("%s: %w %s", argv[0], err, strings.TrimSpace(errs.String()))
	}
	return out, nil
}

func scrape(ctx context.Context, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, programTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return io.ReadAll(io.LimitReader(resp.Body, bundle.Most))
}
