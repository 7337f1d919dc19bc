package hwdiscovery

import (
	"path"
	"slices"
	"strings"

	"berth/topology"
)

// readMdevs reads the mediated devices that were made of PCI functions into
// host.Mdevs. The link of each one names its parent and its own link its type
// (Documentation/driver-api/vfio-mediated-device.rst); those of other parents
// (channel subsystems, crypto adapters) are left out.
func (t *tree) readMdevs(host *topology.Host) {
	names, _ := t.names(mdevDir)
	slices.Sort(names)
	for _, name := range names {
		target, err := t.root.Readlink(mdevDir + "/" + name)
		if err != nil {
			t.complain(optional, "file_malformed", mdevDir+"/"+name, about{}, "is no link to the device: %v", plain(err))
			continue
		}
		parent, err := topology.ParsePCIAddress(path.Base(path.Dir(target)))
		if err != nil {
			continue
		}
		host.Mdevs = append(host.Mdevs, topology.Mdev{
			UUID: strings.ToLower(name), Parent: parent, Type: t.link(mdevDir + "/" + name + "/mdev_type"),
		})
	}
}
