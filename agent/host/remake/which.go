package remake

import (
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
)

// RootDisk is the disk that a flavor's size and an image are for: the first that the
// guest writes.
func RootDisk(doc *domainxml.Doc) (domainxml.Disk, error) {
	for _, d := range doc.Disks() {
		if d.ReadOnly || d.Device != "disk" && d.Device != "lun" {
			continue
		}
		// Disks of some types have no name here (nvme); they are no empty drives.
		if d.Source == "" && (d.Type == "file" || d.Type == "block") {
			continue
		}
		if d.Format == "" {
			d.Format = "raw"
		}
		return d, nil
	}
	return domainxml.Disk{}, fault.Refuse(fault.Forbidden, "", fault.Reason{
		Code: "no_root_disk", Message: "the guest has no disk that it writes, which an image could be for",
		Change: "attach one first, or create the guest anew from the image",
	})
}

// MayReplace refuses a root disk that is not this host's to make anew, and says whose it is.
func MayReplace(d domainxml.Disk) error {
	refuse := func(code, message, change string) error {
		return fault.Refuse(fault.Forbidden, "", fault.Reason{Code: code, Message: message, Have: d.Source, Change: change})
	}
	what := "root disk " + d.Target
	if d.Source != "" {
		what += " (" + d.Source + ")"
	}
	switch {
	case d.Type != "file":
		return refuse("root_not_a_file", what+" is of type "+d.Type+": its storage gives it another image, no host does",
			"have whoever keeps that storage do it")
	case d.Shareable:
		return refuse("root_shareable", what+" may be in use by other guests", "change it by hand while all of them are off")
	case d.Format != "raw" && d.Format != "qcow2":
		return refuse("disk_format", what+" is of format "+d.Format+": want raw or qcow2", "convert it with qemu-img while the guest is off")
	}
	return nil
}
