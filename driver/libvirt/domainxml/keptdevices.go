package domainxml

import (
	"fmt"
	"slices"
	"strings"

	"github.com/beevik/etree"
)

// knownDevices are the devices that are the guest's own: QEMU makes them of
// nothing that another guest could want.
var knownDevices = []string{"emulator", "controller", "sound", "hub", "memballoon", "watchdog", "panic", "iommu", "nvram", "redirfilter"}

// device looks at one device.
func (k *keeping) device(e *etree.Element) {
	path := "devices/" + e.Tag
	switch e.Tag {
	case "disk":
		k.disk(path, e)
	case "interface":
		k.network(path, e)
	case "hostdev":
		k.hostdev(path, e)
	case "filesystem":
		target := attribute(e, "target", "dir")
		driver := attribute(e, "driver", "type")
		if driver == "" || driver == "path" {
			driver = "9p"
		}
		k.stays(path, "shared folder "+target+" ("+driver+")", "its files are the host's", "detach it, or use a network filesystem inside the guest")
	case "tpm":
		k.tpm(path, e)
	case "redirdev":
		// Over SPICE the viewer connects anew; without one there is nothing to carry.
		what, t := "redirected USB device", e.SelectAttrValue("type", "")
		if t == "spicevmc" {
			k.keeps(path, what+" ("+t+")", "what a viewer redirects is unplugged when the guest moves, unless the viewer follows")
		} else {
			k.staysRunning(path, what+" ("+t+")", "its connection ends where the guest runs", detachOrOff)
		}
	case "smartcard":
		if mode := e.SelectAttrValue("mode", ""); mode != "passthrough" {
			k.stays(path, "smart card of mode "+mode, "the reader or its certificates are the host's", detach)
		}
	case "shmem":
		what := "shared memory " + e.SelectAttrValue("name", "")
		// Only the one who writes it for the others can be sent.
		if e.SelectAttrValue("role", "") == "master" {
			k.keeps(path, what, "guests of this host that share it do not come along")
		} else {
			k.stays(path, what, "others of this host write it", detach)
		}
	case "serial", "parallel":
		k.character(path, e.Tag+" port", e)
	case "console":
		// libvirt shows the first serial port a second time, as a console.
		if attribute(e, "target", "type") != "serial" {
			k.character(path, "console", e)
		}
	case "channel":
		k.character(path, "channel "+attribute(e, "target", "name"), e)
	case "rng":
		if b := e.SelectElement("backend"); b != nil && b.SelectAttrValue("model", "") == "egd" {
			k.character(path, "random numbers", b)
		}
	case "audio":
		if t := e.SelectAttrValue("type", ""); !slices.Contains([]string{"none", "spice", "dbus"}, t) {
			k.keeps(path, "sound played by "+t, "no claim holds what plays it, and another host needs the same")
		}
	case "input":
		if t := e.SelectAttrValue("type", ""); t == "evdev" || t == "passthrough" {
			k.stays(path, "input from host device "+attribute(e, "source", "dev")+attribute(e, "source", "evdev"), "no claim holds the device", detach)
		}
	case "video":
		if attribute(e, "driver", "name") == "vhostuser" {
			k.stays(path, "video device of type vhostuser", "another process of this host draws it, and QEMU cannot send its state", detach)
		} else if attribute(e, "model/acceleration", "accel3d") == "yes" {
			k.staysRunning(path, "3D acceleration of its video device", "the host's GPU draws it, which no claim holds", "switch it off, or move the guest shut off")
		}
	case "graphics":
		if node := attribute(e, "gl", "rendernode"); node != "" {
			k.keeps(path, "graphics on host device "+node, "no claim holds the device")
		}
	case "memory":
		k.module(path, e)
	case "vsock":
		if attribute(e, "cid", "auto") != "yes" {
			k.keeps(path, "vsock address "+attribute(e, "cid", "address"), "a host has it once, and no claim holds it")
		}
	case "lease":
		k.keeps(path, "lease "+child(e, "key"), "its lock manager guards it, and no claim")
	case "crypto":
		// One that another process of the host serves (vhost-user) has a socket of its.
		if model := attribute(e, "backend", "model"); model == "builtin" || model == "lkcf" {
			k.staysRunning(path, "crypto device ("+model+")", "QEMU cannot send its state", detachOrOff)
		} else {
			k.stays(path, "crypto device ("+model+")", "QEMU cannot send its state", detach)
		}
	default:
		if !slices.Contains(knownDevices, e.Tag) {
			k.keeps(path, "device <"+e.Tag+">", "this version does not know what it asks of a host")
		}
	}
}

// character names what a character device is connected to on this host.
func (k *keeping) character(path, what string, e *etree.Element) {
	at := attribute(e, "source", "path")
	switch t := e.SelectAttrValue("type", ""); {
	case t == "dev":
		k.stays(path, what+" on host device "+at, "no claim holds the device", detach)
	case t == "pipe", t == "unix" && attribute(e, "source", "mode") == "connect":
		k.keeps(path, what+" at "+t+" "+at, "another process of this host is at its other end")
	}
}

// disk names disks whose content is found by a name that means another thing on
// another host, and secrets.
func (k *keeping) disk(path string, e *etree.Element) {
	target := attribute(e, "target", "dev")
	disk := "disk " + target
	const give = detach + ", then attach it as a file or block device of storage that both hosts have"
	before := len(k.out)
	switch t := e.SelectAttrValue("type", "file"); t {
	case "file", "block":
	case "volume":
		k.stays(path, disk+" (volume "+source(e)+")", "a pool of that name has other volumes on another host", give)
	case "nvme":
		k.stays(path, disk+" (the host's own NVMe device)", "its content does not move", give)
	case "network":
		for _, h := range e.FindElements("./source/host") {
			if h.SelectAttrValue("transport", "") == "unix" {
				k.stays(path, disk+" (served at "+h.SelectAttrValue("socket", "")+")", "another process of this host serves it", give)
			}
		}
	case "vhostuser", "vhostvdpa":
		k.stays(path, disk+" (type "+t+" at "+source(e)+")", "another process of this host serves it", give)
	case "dir":
		k.stays(path, disk+" (folder "+source(e)+")", "its files are the host's", detach)
	default:
		k.stays(path, disk+" (type "+t+")", "this version does not know what is behind that type", give)
	}
	for _, below := range e.FindElements(".//backingStore[@type='volume']") {
		k.stays(path, disk+" (stands on volume "+source(below)+")", "a pool of that name has other volumes on another host", give)
	}
	for i := range k.out[before:] {
		k.out[before+i].Disk = target
	}
	if e.SelectElement("transient") != nil {
		k.staysRunning(path, disk+" (transient)", "what the guest writes is thrown away when it stops", "move the guest shut off")
	}
	var secrets []string
	for _, s := range e.FindElements(".//secret") {
		name := s.SelectAttrValue("uuid", s.SelectAttrValue("usage", ""))
		if !slices.Contains(secrets, name) {
			secrets = append(secrets, name)
		}
	}
	if len(secrets) > 0 {
		k.keeps(path+"/secret", disk+" with libvirt's secret "+strings.Join(secrets, ", "), "secrets are not copied; another host needs the same")
	}
}

// network names interfaces that are more than a plug in a bridge.
func (k *keeping) network(path string, e *etree.Element) {
	nic := "interface " + strings.ToLower(attribute(e, "mac", "address"))
	dev := attribute(e, "source", "dev")
	switch e.SelectAttrValue("type", "") {
	case "network":
		// A running guest shows a function of a network's pool as type hostdev, and
		// else the bridge and tap that it is on.
		if attribute(e, "source", "bridge") == "" && attribute(e, "target", "dev") == "" {
			k.keeps(path, nic+" of network "+attribute(e, "source", "network"), "whether it takes a virtual function of the host is known when the guest runs")
		}
	case "vdpa":
		k.stays(path, nic+" of vDPA device "+dev, "no claim holds the device", detach)
	case "ethernet":
		if attribute(e, "target", "managed") == "no" {
			k.keeps(path, nic+" on tap "+attribute(e, "target", "dev"), "somebody made that device on this host, and has to on another")
		}
	case "direct":
		if attribute(e, "source", "mode") == "passthrough" {
			k.keeps(path, nic+" that has "+dev+" to itself", "no claim holds the device")
		}
	case "vhostuser":
		k.keeps(path, nic+" at socket "+attribute(e, "source", "path"), "another process of this host serves it")
	}
}

// hostdev names devices of the host that are neither PCI nor mediated.
func (k *keeping) hostdev(path string, e *etree.Element) {
	t := e.SelectAttrValue("type", "")
	at := func(p string, names ...string) string {
		var out []string
		for _, n := range names {
			if v := attribute(e, p, n); v != "" {
				out = append(out, v)
			}
		}
		return strings.Join(out, ":")
	}
	if e.SelectAttrValue("mode", "subsystem") != "subsystem" {
		k.stays(path, fmt.Sprintf("host device of mode %s (%s)", e.SelectAttrValue("mode", ""), t), "no claim holds the device", detach)
		return
	}
	what := ""
	switch t {
	case "pci", "mdev":
		return
	case "usb":
		hex := func(tag string) string { return strings.TrimPrefix(at("source/"+tag, "id"), "0x") }
		var names []string
		if v := hex("vendor"); v != "" {
			names = append(names, v+":"+hex("product"))
		}
		if a := at("source/address", "bus", "device"); a != "" {
			names = append(names, "bus "+strings.Replace(a, ":", " device ", 1))
		}
		what = strings.Join(names, ", ")
	case "scsi":
		if what = at("source", "name"); what == "" {
			what = at("source/adapter", "name") + " " + at("source/address", "bus", "target", "unit")
		}
	case "scsi_host":
		what = at("source", "wwpn")
	}
	k.stays(path, strings.TrimSpace(t+" host device "+what), "no claim holds the device", detach)
}

// tpm names the TPM. Placement has a trait for hosts that can give one, and no
// inventory: there is nothing to claim of an emulated one.
func (k *keeping) tpm(path string, e *etree.Element) {
	switch t := attribute(e, "backend", "type"); t {
	case "passthrough":
		k.stays(path, "TPM of type passthrough on host device "+attribute(e, "backend/device", "path"), "no claim holds the device", detach)
	case "emulator":
		// With a definition libvirt removes the TPM's state, and where that lies on
		// storage of both hosts it is the moved guest's.
		why := "its state is files of the guest's own, which libvirt keeps on this host and removes with the definition"
		if s := attribute(e, "backend/encryption", "secret"); s != "" {
			why += "; they need libvirt's secret " + s
		}
		k.stays(path, "TPM of type emulator", why, detach)
	default:
		k.stays(path, "TPM of type "+t, "its state is with another process of this host", detach)
	}
}

// module names memory devices whose content is not plain memory of the host.
func (k *keeping) module(path string, e *etree.Element) {
	model := e.SelectAttrValue("model", "")
	if model == "dimm" || model == "virtio-mem" {
		return
	}
	what := "memory device of model " + model
	if p := e.FindElement("./source/path"); p != nil {
		what += " on " + strings.TrimSpace(p.Text())
	}
	k.stays(path, what, "its content is not held as memory by a claim and does not move", detach)
}
