package host

import (
	"context"
	"encoding/xml"
	"strconv"
	"strings"

	"berth/driver"
	"berth/internal/fault"
)

// resume lets a guest's CPUs run after a move. QEMU opens the guest's files anew then, and may
// find that they are not its user's any more: the other side's libvirt, done with the guest,
// gives a file back to whoever had it before, unless it takes the filesystem for a shared one or
// reads from an extended attribute that another libvirt uses the file. The attribute counts only
// where both say that the machine was booted in the same second, so two hosts never agree
// (libvirt's src/security/security_util.c, "unable to execute QEMU command 'cont': … Permission
// denied"). Files that are not its user's are given to him, and it is asked once more.
func (h *Host) resume(ctx context.Context, uuid string) error {
	err := h.driver.Resume(ctx, uuid)
	switch fault.KindOf(err) {
	case "", fault.InDoubt, fault.NotFound, fault.Unavailable:
		return err
	}
	given, lookErr := h.giveFiles(ctx, uuid)
	if len(given) == 0 {
		if lookErr != nil {
			h.log.Warn("the files of a guest that cannot be resumed were not looked at", "instance", uuid, "error", lookErr)
		}
		return err
	}
	h.log.Warn("files of a guest were not its user's any more, and are again", "instance", uuid, "files", given, "error", err)
	return h.driver.Resume(ctx, uuid)
}

// giveFiles gives the files that a running guest writes to its user, where libvirt has made
// them that user's before; it names those that were not.
func (h *Host) giveFiles(ctx context.Context, uuid string) ([]string, error) {
	text, err := h.driver.XML(ctx, uuid, driver.Live)
	if err != nil {
		return nil, err
	}
	doc, err := parseDocument(text)
	if err != nil {
		return nil, err
	}
	uid, gid, ok := fileOwner(text)
	if !ok {
		return nil, nil
	}
	var given []string
	for _, d := range doc.Devices.Disks {
		if d.readOnly() || d.path() == "" || d.Type != "file" && d.Type != "block" {
			continue
		}
		changed, err := h.files.GiveTo(d.path(), uid, gid)
		if err != nil {
			return given, err
		}
		if changed {
			given = append(given, d.path())
		}
	}
	return given, nil
}

// fileOwner is the user and group to whom libvirt gives a running guest's files: its DAC label,
// which a live document has as numbers. False where it changes no owners.
func fileOwner(text string) (uid, gid int, ok bool) {
	var doc struct {
		SecLabels []struct {
			Model   string `xml:"model,attr"`
			Relabel string `xml:"relabel,attr"`
			Image   string `xml:"imagelabel"`
		} `xml:"seclabel"`
	}
	if xml.Unmarshal([]byte(text), &doc) != nil {
		return 0, 0, false
	}
	for _, l := range doc.SecLabels {
		if l.Model != "dac" || l.Relabel == "no" {
			continue
		}
		user, group, _ := strings.Cut(strings.TrimSpace(l.Image), ":")
		uid, err := strconv.Atoi(strings.TrimPrefix(user, "+"))
		gid, gerr := strconv.Atoi(strings.TrimPrefix(group, "+"))
		return uid, gid, err == nil && gerr == nil
	}
	return 0, 0, false
}
