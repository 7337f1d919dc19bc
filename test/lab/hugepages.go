package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Huge pages for a lab's guests (Options.HugePages) are surplus pages: the
// kernel makes one when a guest maps it and takes it apart when the guest ends.
// All that changes on the machine is the limit of such pages,
// nr_overcommit_hugepages, raised by what the living labs may use. The machine's
// pool, nr_hugepages, is never written, so its size is afterwards what it was,
// also after kill -9: what a crash can leave is a limit that nobody uses, and
// the next lab that comes up or goes down puts that right too, in whatever
// folder. Raising the pool itself would leave memory taken until then.
//
// A host cannot use more than its share, nor another host's: its mount of
// hugetlbfs, in its namespace, has that size.
//
// The number that was there before the first lab is kept in hugepages.json in
// the cache, with each lab's share, and is written back when the last lab ends.
// A change made by hand while a lab is up is lost then.

const hugePageKiB = 2048

// overcommitFile is the machine's limit of surplus pages of 2 MiB.
const overcommitFile = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages"

// pageLedger is hugepages.json. It is written before the limit is, and removed
// after the limit is back.
type pageLedger struct {
	Boot    string               // of /proc/sys/kernel/random/boot_id: the next boot has its own settings
	Machine int                  // the limit without labs
	Labs    map[string]pageShare // by the lab's folder
}

type pageShare struct {
	Pages  int
	Holder process // the lab's switch; when it has ended, so has the lab
}

// pageAccount is where the ledger and the limit are, apart for tests.
type pageAccount struct{ ledger, limit, boot string }

func machinePages() pageAccount {
	return pageAccount{filepath.Join(CacheDir(), "hugepages.json"), overcommitFile, "/proc/sys/kernel/random/boot_id"}
}

// hold lets the lab in dir use that many pages until its holder ends; none
// ends it at once. Labs that have ended are forgotten in the same step.
func (a pageAccount) hold(dir string, pages int, holder process) error {
	if pages == 0 && !exists(a.ledger) {
		return nil // no lab ever asked, which is the usual case
	}
	unlock, err := lockFile(a.ledger + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	boot, err := os.ReadFile(a.boot)
	if err != nil {
		return err
	}
	now, err := os.ReadFile(a.limit)
	if err != nil {
		return fmt.Errorf("pages of 2 MiB: %w", err)
	}
	l := pageLedger{Boot: strings.TrimSpace(string(boot)), Labs: map[string]pageShare{}}
	if l.Machine, err = strconv.Atoi(strings.TrimSpace(string(now))); err != nil {
		return fmt.Errorf("%s: %w", a.limit, err)
	}
	if b, err := os.ReadFile(a.ledger); err == nil {
		var old pageLedger
		if err := json.Unmarshal(b, &old); err != nil {
			return fmt.Errorf("%s: %w", a.ledger, err)
		}
		if old.Boot == l.Boot && old.Labs != nil {
			l = old
		}
	} else if !os.IsNotExist(err) {
		return err
	}
	delete(l.Labs, dir)
	limit := l.Machine
	for other, share := range l.Labs {
		if !share.Holder.alive() {
			delete(l.Labs, other)
			continue
		}
		limit += share.Pages
	}
	if pages > 0 {
		l.Labs[dir] = pageShare{pages, holder}
		limit += pages
	}
	b, err := json.MarshalIndent(l, "", "\t")
	if err != nil {
		return err
	}
	if err := errors.Join(os.WriteFile(a.ledger+".new", append(b, '\n'), 0o644), os.Rename(a.ledger+".new", a.ledger)); err != nil {
		return err
	}
	if err := os.WriteFile(a.limit, []byte(strconv.Itoa(limit)), 0o644); err != nil {
		return fmt.Errorf("let guests have huge pages: %w", err)
	}
	if len(l.Labs) == 0 {
		return os.Remove(a.ledger)
	}
	return nil
}
