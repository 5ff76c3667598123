package storage

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// scsi-device-state reads
//
//	/sys/class/scsi_disk/0:0:0:0/device/state       running
//	/sys/class/scsi_disk/0:0:0:0/device/block/sda   the name that people know
//
// for each SCSI, SAS, SATA, USB, iSCSI, Fibre Channel and virtio-scsi disk. The states (drivers/scsi/scsi_sysfs.c):
// running; created (not ready yet); cancel, deleted (being removed); quiesce (takes only commands of the kernel itself,
// as during a suspend); offline (the kernel, after error recovery, or a person gave it up: all I/O fails until a person
// writes "running"); transport-offline (the transport gave up: fast_io_fail_tmo, replacement_timeout); blocked,
// created-blocked (the transport lost its port and waits for it: all I/O waits).
//
// https://docs.kernel.org/scsi/scsi_eh.html, https://docs.kernel.org/scsi/scsi_fc_transport.html

const (
	// passingState is how long a transient state of transports and removals may last.
	passingState = 30 * time.Second

	reasonDiskOffline = "DiskOffline"
	reasonDiskBlocked = "DiskBlocked"
)

// SCSIDeviceState finds disks that the kernel gave up or that their transport lost.
func SCSIDeviceState() detect.Check {
	return detect.Check{
		ID: "scsi-device-state", Domain: "storage",
		Summary: "the kernel gave up a SCSI or SATA disk, or its transport lost it",
		Advice: "See `dmesg -T | grep -i -e DISK -e scsi` for the reason. A local disk: check cable, power and " +
			"backplane, then run `echo running > /sys/block/DISK/device/state`; if it goes offline again, replace " +
			"it. A network disk: check its session (`iscsiadm -m session -P 1`) or port (`/sys/class/fc_host`, " +
			"`/sys/class/fc_remote_ports`).",
		Doc: detect.Doc{
			Reads: []string{"/sys/class/scsi_disk/*/device/{state,block}",
				"the mount table when a disk is not running"},
			Why: "All I/O to an offline disk fails at once, and to a blocked one waits: the filesystems on it turn " +
				"read-only, shut down or hang, and pods with them.",
			Faults: []detect.Fault{
				{Reason: reasonDiskOffline, Severity: finding.Fatal, When: "state offline or transport-offline: " +
					"warning; fatal where the filesystem of /, kubelet or the runtime is on this disk alone (no " +
					"array or multipath in between)"},
				{Reason: reasonDiskBlocked, Severity: finding.Warning,
					When: "state blocked, created-blocked, quiesce, created or cancel for 30 s: transports need " +
						"seconds to find a port again"},
			},
			FalseAlarms: "A disk that a person set offline on purpose looks like one that failed. A path of a " +
				"multipath device that is offline while others are usable is a warning all the same.",
		},
		Condition: detect.StorageProblem(),
		Every:     30 * time.Second, Deadline: 5 * time.Second,
		Wakes: []detect.Wake{checkkit.KernelWake()},
		Run:   new(heldStates).scsiDisks,
	}
}

// heldStates has the start times of device states that are faults only after a while.
type heldStates struct {
	since map[string]stateSince
	fresh map[string]stateSince // of the current run
}

type stateSince struct {
	state string
	up    time.Duration
}

// begin starts a run that could list the devices: states that are not held in it are dropped.
func (m *heldStates) begin() { m.since, m.fresh = m.fresh, make(map[string]stateSince) }

// held returns how long a device has been in a state in all runs.
func (m *heldStates) held(device, state string, now time.Duration) time.Duration {
	since, known := m.since[device]
	if !known || since.state != state || since.up > now {
		since = stateSince{state, now}
	}
	m.fresh[device] = since
	return now - since.up
}

func (m *heldStates) scsiDisks(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	disks, err := scsiDisks(h.Files)
	if err != nil {
		return nil, err
	}
	m.begin()
	var results checkkit.Results
	now := h.Clock().SinceBoot
	for _, d := range disks {
		state, err := h.Files.Text(d.dir + "/state")
		if results.Unread(deviceSubject(d.name), err) {
			continue
		}
		reason := scsiStateFault(state)
		if reason == "" || reason == reasonDiskBlocked && m.held(d.name, state, now) < passingState {
			continue
		}
		results.Add(scsiStateFinding(ctx, h, d, checkkit.Sanitize(state, 32), reason), true)
	}
	return results.Done()
}

// scsiStateFault returns the meaning of a state. An unknown one is no fault: otherwise it would be one on all nodes at
// once.
func scsiStateFault(state string) string {
	switch state {
	case "offline", "transport-offline":
		return reasonDiskOffline
	case "blocked", "created-blocked", "quiesce", "created", "cancel":
		return reasonDiskBlocked
	}
	return ""
}

func scsiStateFinding(ctx context.Context, h *host.Host, d scsiDisk, state, reason string) finding.Finding {
	f := finding.Finding{
		Subject: deviceSubject(d.name), Severity: finding.Warning, Reason: reason,
		Message: fmt.Sprintf("disk %s (%s) is %s", d.name, d.address, state),
		Facts:   map[string]string{"state": state, "address": d.address},
	}
	addImpact(ctx, h, &f, reason == reasonDiskOffline, true, d.name)
	return f
}

// scsiDisk is one disk of the SCSI layer, which SATA and most storage networks use too.
type scsiDisk struct {
	name    string // sda
	address string // host:channel:target:lun
	dir     string // its folder in /sys
}

// scsiDisks lists all disks of the SCSI layer by name.
func scsiDisks(files host.Files) ([]scsiDisk, error) {
	addresses, err := checkkit.ListSorted(files, "/sys/class/scsi_disk")
	if err != nil {
		return nil, fmt.Errorf("list /sys/class/scsi_disk: %w", err)
	}
	if len(addresses) == 0 {
		return nil, finding.NotApplicable("there is no SCSI or SATA disk")
	}
	if len(addresses) > checkkit.MaxDisks {
		return nil, fmt.Errorf("list /sys/class/scsi_disk: %d disks", len(addresses))
	}
	disks := make([]scsiDisk, 0, len(addresses))
	for _, address := range addresses {
		dir := "/sys/class/scsi_disk/" + address + "/device"
		names, err := files.List(dir + "/block")
		if err != nil || len(names) == 0 { // no block device yet, or no longer
			continue
		}
		disks = append(disks, scsiDisk{name: names[0], address: checkkit.Sanitize(address, 64), dir: dir})
	}
	slices.SortFunc(disks, func(a, b scsiDisk) int { return cmp.Compare(a.name, b.name) })
	return disks, nil
}
