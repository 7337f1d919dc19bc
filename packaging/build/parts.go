package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// part is something that the binary is made of: a module, or Go's own library.
type part struct {
	Path    string
	Version string
	Sum     string   // as in go.sum
	Licence string   // SPDX identifier
	Notices []notice // texts that must go with the binary
	Needs   []string // paths of other parts
}

type notice struct{ Name, Text string }

// standard is the part that comes with the Go tool.
const standard = "std"

// parts reads what the linker left in the binary, so nothing that only tests or tools
// need is among them, and adds the licences that lie in the module cache.
func (r *release) parts(ctx context.Context) ([]part, error) {
	info, err := buildinfo.ReadFile(r.binary)
	if err != nil {
		return nil, err
	}
	root, err := output(ctx, r.root, "go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	goPart := part{Path: standard, Version: strings.TrimPrefix(info.GoVersion, "go")}
	if goPart.Notices, err = notices(root); err != nil {
		return nil, err
	}
	parts, args := []part{goPart}, []string{"list", "-m", "-json"}
	for _, m := range info.Deps {
		if m.Replace != nil {
			return nil, fmt.Errorf("module %s is replaced by %s: a release is made of what go.mod names", m.Path, m.Replace.Path)
		}
		parts, args = append(parts, part{Path: m.Path, Version: m.Version, Sum: m.Sum}), append(args, m.Path)
	}
	text, err := output(ctx, r.root, "go", args...)
	if err != nil {
		return nil, err
	}
	for dec := json.NewDecoder(strings.NewReader(text)); ; {
		var m struct{ Path, Version, Dir string }
		if err := dec.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(parts, func(p part) bool { return p.Path == m.Path })
		if i < 0 || parts[i].Version != m.Version {
			return nil, fmt.Errorf("the binary has another %s than go.mod's %s: build it anew", m.Path, m.Version)
		}
		if parts[i].Notices, err = notices(m.Dir); err != nil {
			return nil, err
		}
	}
	for i := range parts {
		if parts[i].Licence, err = licenceOf(parts[i].Notices); err != nil {
			return nil, fmt.Errorf("%s %s: %w", parts[i].Path, parts[i].Version, err)
		}
	}
	return parts, r.needs(ctx, parts)
}

// needs fills in which part asks for which, as far as both are in the binary.
func (r *release) needs(ctx context.Context, parts []part) error {
	text, err := output(ctx, r.root, "go", "mod", "graph")
	if err != nil {
		return err
	}
	at := map[string]int{}
	for i, p := range parts {
		at[p.Path+"@"+p.Version] = i
	}
	for line := range strings.Lines(text) {
		from, to, _ := strings.Cut(strings.TrimSpace(line), " ")
		path, _, _ := strings.Cut(to, "@")
		i, known := at[from]
		if !known || !slices.ContainsFunc(parts, func(p part) bool { return p.Path == path }) {
			continue
		}
		if !slices.Contains(parts[i].Needs, path) {
			parts[i].Needs = append(parts[i].Needs, path)
		}
	}
	for i := range parts {
		slices.Sort(parts[i].Needs)
	}
	return nil
}

// notices are the texts of a module's first folder whose names say that they are about
// its licence.
func notices(dir string) ([]notice, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []notice
	for _, e := range entries {
		name := strings.ToUpper(e.Name())
		if !e.Type().IsRegular() || !slices.ContainsFunc([]string{"LICENSE", "LICENCE", "COPYING", "NOTICE", "PATENTS"}, func(p string) bool { return strings.HasPrefix(name, p) }) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		out = append(out, notice{e.Name(), string(bytes.TrimSpace(text))})
	}
	return out, nil
}

// licences are told by words that stand in one of them and in none before it here. What
// is none of them stops the build: somebody has to read it.
var licences = []struct {
	id    string
	words []string
}{
	{"Apache-2.0", []string{"Apache License", "Version 2.0, January 2004"}},
	{"MPL-2.0", []string{"Mozilla Public License", "2.0"}},
	{"ISC", []string{"Permission to use, copy, modify, and", "distribute this software for any purpose with or without fee"}},
	{"MIT", []string{"Permission is hereby granted, free of charge, to any person obtaining a copy", "to deal in the Software without restriction"}},
	{"BSD-3-Clause", []string{"Redistribution and use in source and binary forms", "endorse or promote products"}},
	{"BSD-2-Clause", []string{"Redistribution and use in source and binary forms"}},
}

func licenceOf(texts []notice) (string, error) {
	for _, n := range texts {
		flat := strings.Join(strings.Fields(n.Text), " ")
		for _, l := range licences {
			if !slices.ContainsFunc(l.words, func(w string) bool { return !strings.Contains(flat, w) }) {
				return l.id, nil
			}
		}
	}
	return "", fmt.Errorf("it has no licence that this program knows: read it, then name it in packaging/build/parts.go")
}

// allNotices is one text with every notice, as the licences want it beside a binary.
func allNotices(parts []part) string {
	var b strings.Builder
	b.WriteString("Berth's binary holds Go's library and these modules. What their authors want to be said:\n")
	for _, p := range parts {
		fmt.Fprintf(&b, "\n%s\n%s %s (%s)\n", strings.Repeat("=", 78), p.Path, p.Version, p.Licence)
		for _, n := range p.Notices {
			fmt.Fprintf(&b, "\n--- %s\n\n%s\n", n.Name, n.Text)
		}
	}
	return b.String()
}
