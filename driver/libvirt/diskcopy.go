package libvirt

import (
	"context"

	"berth/driver"
	"berth/driver/libvirt/domainxml"
)

const blockJobCopy = 2 // VIR_DOMAIN_BLOCK_JOB_TYPE_COPY

// DiskCopies implements driver.StorageCopier. libvirt shows the copies of a
// migration as block jobs of the source's disks. Which of them copies it does not
// tell at once, so each disk is asked.
func (d *Driver) DiskCopies(ctx context.Context, uuid string) (map[string]driver.DiskCopy, error) {
	return do(ctx, d.stats, request{verb: "read disk copies of", uuid: uuid}, func(c Conn) (map[string]driver.DiskCopy, error) {
		text, err := c.XML(uuid, 0)
		if err != nil {
			return nil, err
		}
		doc, err := domainxml.Parse(text)
		if err != nil {
			return nil, err
		}
		out := map[string]driver.DiskCopy{}
		for _, disk := range doc.Disks() {
			j, found, err := c.BlockJob(uuid, disk.Target)
			switch code := codeOf(err); {
			case code == errOperationInvalid || code == errInvalidArg:
				continue // it does not run; or the disk was unplugged since
			case err != nil:
				return nil, err
			case found && j.Type == blockJobCopy:
				// Done reaches Total only when QEMU calls the copy ready: until then libvirt
				// says one less (qemuBlockJobInfoTranslate).
				out[disk.Target] = driver.DiskCopy{Total: j.Total, Copied: j.Done, Ready: j.Total > 0 && j.Done == j.Total}
			}
		}
		return out, nil
	})
}
