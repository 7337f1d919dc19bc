package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// What nfpm is told (https://nfpm.goreleaser.com/docs/configuration/), as JSON, which is
// YAML too.
type (
	nfpmConfig struct {
		Name          string         `json:"name"`
		Arch          string         `json:"arch"`
		Platform      string         `json:"platform"`
		Version       string         `json:"version"`
		VersionSchema string         `json:"version_schema"`
		Section       string         `json:"section,omitempty"`
		Priority      string         `json:"priority,omitempty"`
		Maintainer    string         `json:"maintainer"`
		Description   string         `json:"description"`
		Licence       string         `json:"license"`
		MTime         time.Time      `json:"mtime"`
		Globbing      bool           `json:"disable_globbing"`
		Umask         int            `json:"umask"`
		Depends       []string       `json:"depends,omitempty"`
		Recommends    []string       `json:"recommends,omitempty"`
		Contents      []nfpmContent  `json:"contents"`
		Scripts       nfpmScripts    `json:"scripts"`
		RPM           map[string]any `json:"rpm,omitempty"`
		Deb           map[string]any `json:"deb,omitempty"`
	}
	nfpmContent struct {
		Source string   `json:"src,omitempty"`
		To     string   `json:"dst"`
		Kind   string   `json:"type,omitempty"`
		Info   nfpmInfo `json:"file_info"`
	}
	nfpmInfo struct {
		Owner string      `json:"owner"`
		Group string      `json:"group"`
		Mode  fs.FileMode `json:"mode"`
		MTime time.Time   `json:"mtime"`
	}
	nfpmScripts struct {
		PreInstall  string `json:"preinstall,omitempty"`
		PostInstall string `json:"postinstall,omitempty"`
		PreRemove   string `json:"preremove,omitempty"`
		PostRemove  string `json:"postremove,omitempty"`
	}
)

const description = `agent of a KVM host: claims, Placement, safe moves of guests
Berth finds the hardware of a hypervisor, keeps OpenStack Placement (the one
that it brings, or the real service) equal to it, holds each guest's resources
as claims under one lock, and moves guests between hosts as journaled steps,
each with an undo: a guest runs exactly once, and nothing is left behind.
On a host that already runs guests it only observes until it is told to manage.`

// pack makes one package and gives its path.
func (r *release) pack(ctx context.Context, packer string, items []item) (string, error) {
	c := nfpmConfig{
		Name: "berth", Arch: r.arch, Platform: "linux", Version: r.version, VersionSchema: "none",
		Maintainer: r.vendor, Description: description, Licence: "Apache-2.0", MTime: r.time, Globbing: true, Umask: 0,
	}
	path := ""
	switch packer {
	case "deb":
		path = fmt.Sprintf("berth_%s_%s.deb", r.version, r.arch)
		c.Section, c.Priority = "admin", "optional"
		// systemd brings sysusers and tmpfiles, and by the system's bus, which it only recommends, the
		// units of hooks and logind's lock; libvirt may come later, or from elsewhere.
		c.Depends = []string{"systemd (>= 249)", "default-dbus-system-bus | dbus-system-bus"}
		c.Recommends = []string{"libvirt-daemon-system", "libvirt-clients", "qemu-utils"}
		c.Deb = map[string]any{"compression": "gzip"}
	case "rpm":
		machine := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[r.arch]
		path = fmt.Sprintf("berth-%s-1.%s.rpm", r.version, machine)
		c.Depends = []string{"systemd >= 249", "dbus", "/bin/sh"}
		c.Recommends = []string{"libvirt-daemon", "libvirt-client", "qemu-img"}
		first, _, _ := strings.Cut(description, "\n")
		// The host's name would be another on each machine that builds.
		c.RPM = map[string]any{"compression": "gzip", "buildhost": "localhost", "summary": first}
	default:
		return "", fmt.Errorf("package %q: want deb or rpm", packer)
	}
	linked, err := libraries(r.binary, packer)
	if err != nil {
		return "", err
	}
	c.Depends = append(c.Depends, linked...)
	path = filepath.Join(r.out, path)
	stage := filepath.Join(r.work, packer)
	if err := os.MkdirAll(stage, 0o755); err != nil {
		return "", err
	}
	for i, it := range items {
		if it.only != "" && it.only != packer {
			continue
		}
		content := nfpmContent{To: it.to, Kind: it.kind, Info: nfpmInfo{"root", "root", it.mode, r.time}}
		if it.kind == "dir" {
			if it.mode == 0 {
				content.Info.Mode = 0o755
			}
		} else {
			if it.mode == 0 {
				content.Info.Mode = 0o644
			}
			// Of a file that somebody is writing, too, all that is packed is of one moment.
			text := it.text
			if text == nil {
				from := it.from
				if !filepath.IsAbs(from) {
					from = filepath.Join(r.root, from)
				}
				var err error
				if text, err = os.ReadFile(from); err != nil {
					return "", err
				}
			}
			content.Source = filepath.Join(stage, strconv.Itoa(i))
			if err := os.WriteFile(content.Source, text, 0o600); err != nil {
				return "", err
			}
		}
		c.Contents = append(c.Contents, content)
	}
	if err := r.scripts(packer, stage, &c.Scripts); err != nil {
		return "", err
	}
	text, err := json.MarshalIndent(c, "", " ")
	if err != nil {
		return "", err
	}
	conf := filepath.Join(stage, "nfpm.json")
	if err := os.WriteFile(conf, text, 0o600); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "tool", "-modfile="+filepath.Join(r.root, "tools/go.mod"), "nfpm", "package", "--config", conf, "--packager", packer, "--target", path)
	target, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	cmd.Args[len(cmd.Args)-1] = target
	cmd.Dir = r.root
	cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH="+strconv.FormatInt(r.time.Unix(), 10))
	_, err = said(cmd)
	return path, err
}

// scripts joins what both kinds of packages do with each one's own occasions for it:
// packaging/scripts/common.sh is the first part of every script.
func (r *release) scripts(packer, stage string, s *nfpmScripts) error {
	dir := filepath.Join(r.root, "packaging/scripts")
	common, err := os.ReadFile(filepath.Join(dir, "common.sh"))
	if err != nil {
		return err
	}
	for name, to := range map[string]*string{"postinst": &s.PostInstall, "prerm": &s.PreRemove, "postrm": &s.PostRemove} {
		own, err := os.ReadFile(filepath.Join(dir, packer+"-"+name+".sh"))
		if err != nil {
			return err
		}
		*to = filepath.Join(stage, name)
		if err := os.WriteFile(*to, append(common, own...), 0o755); err != nil {
			return err
		}
	}
	return nil
}
