package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/agent/inventory"
	"berth/claims/fit"
	"berth/claims/fitcase"
	"berth/claims/flavor"
	"berth/claims/pci"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/topology"
)

// whatIf is the question that `berth fit --host` asks.
type whatIf struct {
	host, flavor          string
	image                 map[string]string
	dedicated, shared     string
	reserved              []string
	cpuRatio, ramRatio    float64
	printCase, configured bool
}

func (a *app) fitCommand() *cobra.Command {
	var w whatIf
	cmd := &cobra.Command{
		Use:   "fit [FILE…]",
		Short: "Would a guest fit on a host, where, and if not, what would have to change",
		Long: `Place guests on hosts without touching either: which cells, CPUs, pages and PCI
functions a guest would get, or every reason why it gets none.

Without --host, cases are read from the files, or from standard input, one JSON
object a line, and answered one line each, in their order:

  {"id": "web", "host": {"strategy": "pack", "cells": [{"id": 0, "socket": 0,
   "shared_cpus": "0-1", "dedicated_cpus": "2-3", "siblings": ["0", "1", "2", "3"],
   "memory_mb": 4096, "memory_used_mb": 0, "shared_vcpus_used": 0, "pinned_cpus": "",
   "mempages": [{"size_kb": 4, "total": 1048576, "used": 0, "reserved": 0}]}],
   "pci_pools": []}, "request": {"flavor": {"vcpus": 1, "memory_mb": 1024,
   "extra_specs": {"hw:cpu_policy": "dedicated"}}, "image_props": {},
   "pci_requests": []}, "limits": null}

An answer has "fits"; the places, as "cells" and "pci"; the guest's "topology";
"refused" where the flavor itself is at fault; else "reasons" and "changes". Each
change is a JSON Patch (RFC 6902) of the case, and any one of them, applied,
makes it fit: the smallest comes first. A line that is no case is answered with
"error".

With --host, one question is put together and answered in words. HOST.json is a
case's host, a whole case, or what ` + "`berth host discover --json`" + ` printed. Of a
discovered host nothing is in use, and all CPUs are shared, unless --config (the
[host] and [pci] of that host's configuration) or the flags below say otherwise.`,
		Example: `  berth fit cases.jsonl | jq -c 'select(.fits | not) | [.id, .reasons[].message]'
  berth host discover --json > host.json
  berth fit --host host.json --flavor pinned.toml --dedicated-cpus 2-7
  berth fit --host host.json --flavor pinned.toml --image hw_cpu_thread_policy=isolate -o json
  berth fit --host host.json --flavor gpu.toml --config ./host-b.toml`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if w.host == "" && w.flavor == "" {
				return a.fitLines(args)
			}
			if w.host == "" || w.flavor == "" || len(args) > 0 {
				return misusedAs("berth fit --host HOST.json --flavor FLAVOR.toml", "fit: --host and --flavor belong together, and to no FILE")
			}
			w.configured = cmd.Flags().Changed("config")
			return a.fitWhatIf(w)
		},
	}
	f := cmd.Flags()
	f.StringVar(&w.host, "host", "", "what-if: `file` of the host, - for standard input")
	f.StringVar(&w.flavor, "flavor", "", "what-if: TOML `file` of the flavor: vcpus, memory_mb, [extra_specs]")
	f.StringToStringVar(&w.image, "image", nil, "what-if: image `property=value`, repeated")
	f.StringVar(&w.dedicated, "dedicated-cpus", "", "of a discovered host: CPUs that may be pinned, a `cpulist`")
	f.StringVar(&w.shared, "shared-cpus", "", "of a discovered host: CPUs that vCPUs float over, a `cpulist`")
	f.StringArrayVar(&w.reserved, "reserved-hugepages", nil, "of a discovered host: pages that no guest gets, `NODE:SIZE:COUNT`, repeated")
	f.Float64Var(&w.cpuRatio, "cpu-allocation-ratio", 0, "of a discovered host or a host without limits: shared vCPUs promised for a CPU")
	f.Float64Var(&w.ramRatio, "ram-allocation-ratio", 0, "likewise of memory; where one is given the other is 1")
	f.BoolVar(&w.printCase, "print-case", false, "what-if: print the case that is asked, as a JSON line, and do not ask it")
	return cmd
}

// fitLines answers cases line by line.
func (a *app) fitLines(files []string) error {
	out := bufio.NewWriter(a.out)
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	cases, failed := 0, 0
	each := func(in io.Reader) error {
		lines := bufio.NewReaderSize(in, 1<<20)
		for number := 1; ; number++ {
			line, err := lines.ReadBytes('\n')
			if len(strings.TrimSpace(string(line))) > 0 {
				cases++
				answer := answerLine(line, number)
				if answer.Error != "" {
					failed++
				}
				if err := enc.Encode(answer); err != nil {
					return fmt.Errorf("write answer: %w", err)
				}
			}
			if errors.Is(err, io.EOF) {
				return out.Flush()
			}
			if err != nil {
				return fmt.Errorf("read cases: %w", err)
			}
		}
	}
	if len(files) == 0 {
		files = []string{"-"}
	}
	for _, path := range files {
		if err := a.reading(path, each); err != nil {
			return err
		}
	}
	if cases == 0 && slices.Equal(files, []string{"-"}) {
		return misusedAs("berth fit cases.jsonl", "fit: standard input is empty: want cases, one JSON object a line")
	}
	if cases == 0 {
		return misusedAs("berth fit cases.jsonl", "fit: there is no case in %s", strings.Join(files, ", "))
	}
	if failed > 0 {
		return fmt.Errorf("%d of %s could not be answered", failed, count(cases, "case"))
	}
	return nil
}

// noFile refuses a file that does not exist, with exit code 4.
func noFile(path string) error {
	return fault.Refuse(fault.NotFound, "open "+path, fault.Reason{Code: "no_file", Message: "there is no file " + path, Change: "name a file that is there"})
}

// reading opens a file, or standard input for "-".
func (a *app) reading(path string, read func(io.Reader) error) error {
	if path == "-" {
		return read(a.in)
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return noFile(path)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return read(f)
}

func answerLine(line []byte, number int) fitcase.Answer {
	c, err := fitcase.Read(line)
	if err != nil {
		id := fitcase.ReadID(line)
		if id == "" {
			id = fmt.Sprintf("line %d", number)
		}
		return fitcase.Failed(id, err)
	}
	if c.ID == "" {
		c.ID = fmt.Sprintf("line %d", number)
	}
	return fitcase.Solver{Now: time.Now}.Solve(c)
}

func (a *app) fitWhatIf(w whatIf) error {
	line, err := a.compose(w)
	if err != nil {
		return err
	}
	if w.printCase {
		_, err := fmt.Fprintf(a.out, "%s\n", line)
		return err
	}
	c, err := fitcase.Read(line)
	if err != nil {
		return fault.Refuse(fault.Invalid, "read the question", fault.Reason{Code: "case_invalid", Message: err.Error(), Change: "correct " + w.host + " or " + w.flavor})
	}
	answer := fitcase.Solver{Now: time.Now}.Solve(c)
	return a.print(answer, func(out io.Writer) { fitTable(out, c, answer) })
}

// compose puts the case together.
func (a *app) compose(w whatIf) ([]byte, error) {
	var conf config.Config
	if w.configured {
		var err error
		if conf, err = config.Load(a.config); err != nil {
			return nil, err
		}
	}
	var f topology.Flavor
	switch err := config.DecodeFile(w.flavor, &f); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, noFile(w.flavor)
	case errors.Is(err, fs.ErrPermission):
		return nil, misused("read %s: %w", w.flavor, err)
	case err != nil:
		return nil, err
	}
	if f.Name == "" {
		f.Name = "flavor"
	}
	requests, err := flavor.PCIRequests(f, w.image, conf.PCI.Alias)
	if err != nil {
		return nil, flavorFault(w.flavor, err)
	}
	doc := fitcase.Document{ID: f.Name, Request: fitcase.RequestDocument(f, w.image, requests)}
	if err := a.reading(w.host, func(in io.Reader) error { return readHost(in, w, conf, &doc) }); err != nil {
		return nil, err
	}
	if doc.Limits == nil && (w.cpuRatio > 0 || w.ramRatio > 0) {
		doc.Limits = fitcase.LimitsDocument(&fit.Limits{CPURatio: orOne(w.cpuRatio), RAMRatio: orOne(w.ramRatio)})
	}
	return json.Marshal(doc)
}

// flavorFault says every fault of a flavor's devices.
func flavorFault(path string, err error) error {
	var faults flavor.Errors
	if !errors.As(err, &faults) {
		return err
	}
	var reasons []fault.Reason
	for _, f := range faults {
		reasons = append(reasons, fault.Reason{Code: f.Code, Message: f.Error(), Change: "correct " + f.Key + "; aliases are in [pci] of the host's configuration, which --config names"})
	}
	return fault.Refuse(fault.Invalid, "read flavor "+path, reasons...)
}

func orOne(ratio float64) float64 {
	if ratio <= 0 {
		return 1
	}
	return ratio
}

// readHost reads a case, a case's host, or a discovered host.
func readHost(in io.Reader, w whatIf, conf config.Config, doc *fitcase.Document) error {
	bad := func(err error) error {
		return fault.Refuse(fault.Invalid, "read host "+w.host, fault.Reason{
			Code: "host_invalid", Message: err.Error(), Change: "give a case's host, a whole case, or what `berth host discover --json` prints",
		})
	}
	text, err := io.ReadAll(in)
	if err != nil {
		return fmt.Errorf("read host %s: %w", w.host, err)
	}
	var shape struct {
		Host, Limits json.RawMessage
		Cells        json.RawMessage
		BasePageSize *json.RawMessage `json:"base_page_size"`
	}
	if err := json.Unmarshal(text, &shape); err != nil {
		return bad(err)
	}
	ofMachine := w.dedicated != "" || w.shared != "" || len(w.reserved) > 0
	switch {
	case shape.BasePageSize == nil && ofMachine:
		return bad(errors.New("--dedicated-cpus, --shared-cpus and --reserved-hugepages are for a discovered host; this one says so itself"))
	case shape.Host != nil:
		doc.Host, doc.Limits = shape.Host, nil
		if string(shape.Limits) != "null" && shape.Limits != nil {
			doc.Limits = shape.Limits
		}
	case shape.BasePageSize != nil:
		var h topology.Host
		if err := json.Unmarshal(text, &h); err != nil {
			return bad(err)
		}
		return discovered(&h, w, conf, doc)
	case shape.Cells != nil:
		doc.Host = json.RawMessage(text)
	default:
		return bad(errors.New("there are no cells"))
	}
	return nil
}

// discovered makes the host of a case of a machine that was read.
func discovered(h *topology.Host, w whatIf, conf config.Config, doc *fitcase.Document) error {
	options := inventory.CellOptions{Dedicated: conf.Host.DedicatedCPUs, Shared: conf.Host.SharedCPUs}
	for _, p := range conf.Host.ReservedPages {
		options.Pages = append(options.Pages, inventory.ReservedPages{Cell: p.Node, Size: p.Size.Bytes(), Count: p.Count})
	}
	var reasons []fault.Reason
	parse := func(flag, text string, into *topology.CPUSet) {
		if text == "" {
			return
		}
		s, err := topology.ParseCPUSet(text)
		if err != nil {
			reasons = append(reasons, fault.Reason{Code: "usage", Message: flag + ": " + err.Error(), Change: "give a list such as 2-7,10"})
		}
		*into = s
	}
	if w.dedicated != "" && w.shared == "" && conf.Host.SharedCPUs.IsEmpty() {
		// What is not dedicated floats: an operator who names the one set has not
		// said that there are no CPUs of the other kind.
		parse("--dedicated-cpus", w.dedicated, &options.Dedicated)
		options.Shared = h.CPUs().Difference(options.Dedicated)
	}
	parse("--dedicated-cpus", w.dedicated, &options.Dedicated)
	parse("--shared-cpus", w.shared, &options.Shared)
	for _, text := range w.reserved {
		p, err := reservedPages(text)
		if err != nil {
			reasons = append(reasons, fault.Reason{Code: "usage", Message: err.Error(), Change: "give NODE:SIZE:COUNT such as 0:2MiB:512"})
		}
		options.Pages = append(options.Pages, p)
	}
	cells, remarks := inventory.FitCells(h, options)
	for _, r := range remarks {
		switch r.Code {
		case inventory.CPUAbsent, inventory.CPUOffline, inventory.CellUnknown, inventory.PageUnknown:
			reasons = append(reasons, fault.Reason{Code: r.Code, Message: r.Message, Change: r.Change})
		}
	}
	if len(reasons) > 0 {
		return fault.Refuse(fault.Invalid, "read host "+w.host, reasons...)
	}
	m := &fit.Machine{Cells: cells}
	devices, _ := pci.Devices(h, conf.PCI.DeviceSpec)
	for _, p := range pci.Pools(devices, nil, "") {
		m.Pools = append(m.Pools, fit.Pool{Vendor: p.Vendor, Product: p.Product, Type: p.Type, Cell: p.Cell, Tags: p.Tags, Count: p.Count, Excludes: p.Excludes})
	}
	doc.Host = fitcase.HostDocument(m)
	if c, r := conf.Placement.CPURatio, conf.Placement.RAMRatio; c > 0 || r > 0 {
		doc.Limits = fitcase.LimitsDocument(&fit.Limits{CPURatio: orOne(c), RAMRatio: orOne(r)})
	}
	return nil
}

// reservedPages reads NODE:SIZE:COUNT.
func reservedPages(text string) (p inventory.ReservedPages, err error) {
	fields := strings.Split(text, ":")
	if len(fields) != 3 {
		return p, fmt.Errorf("--reserved-hugepages %q: not NODE:SIZE:COUNT", text)
	}
	node, err1 := strconv.ParseUint(fields[0], 10, 16)
	var size config.PageSize
	err2 := size.UnmarshalText([]byte(fields[1]))
	number, err3 := strconv.ParseInt(fields[2], 10, 64)
	if err := errors.Join(err1, err2, err3); err != nil || number < 1 {
		return p, fmt.Errorf("--reserved-hugepages %q: not NODE:SIZE:COUNT", text)
	}
	return inventory.ReservedPages{Cell: topology.CellID(node), Size: size.Bytes(), Count: number}, nil
}
