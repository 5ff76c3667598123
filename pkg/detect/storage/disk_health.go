package storage

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// disk-health asks SATA and SAS disks every hour, in a child process, what they think of themselves (SMART).
//
// ATA, through SAT (ATA PASS-THROUGH 16 over SG_IO; ACS-4, SAT-5): CHECK POWER MODE; and of a disk that does not
// sleep SMART RETURN STATUS (F4h 2Ch in LBA mid and high: a threshold was exceeded), SMART READ DATA (30 attributes
// of 12 bytes from byte 2: number, flags (bit 0 of the first: tells of a failure to come), value, worst, raw value of
// 6 bytes; a checksum at the end) and SMART READ THRESHOLDS (30 of 12 bytes: number, threshold). Raw values of four
// attributes mean the same with nearly all makers: 5 reallocated sectors, 187 reported uncorrectable errors, 197
// sectors that wait to be written again because they cannot be read, 198 those that a scan of the disk itself could
// not read.
//
// SCSI (LOG SENSE over SG_IO; SPC-4): page 00h, and 2Fh, informational exceptions, where that lists it: additional
// sense code 5Dh says that a failure is predicted, 0Bh 01h that it is too hot.
//
//	/sys/class/scsi_disk/0:0:0:0/device/{vendor,model,wwid,state,power/runtime_status}     vendor ATA: a SATA disk
//	/sys/block/sda      -> ../devices/pci0000:00/…/ata1/host0/…/block/sda
//
// Why 100 sectors: that of node-problem-detector's rule for smartd's log. Fewer are worth knowing, and a warning as
// soon as they grow within a day: disks with a growing number fail many times as often.
//
// Only commands that read are sent; SMART that is switched off stays so. A disk that the kernel has suspended is not
// asked, and one that sleeps by itself only whether it does. Disks of another machine (iSCSI, Fibre Channel), on USB
// (bridges hang on what they do not know), removable ones, and those that know no such command (virtual disks,
// volumes of RAID controllers) are left out.
//
// Known false alarms, and what is done: makers fill the other attributes at will, so that they count only where the
// disk itself has a threshold for them. Pending sectors go away when they are written: so does the finding.

const (
	diskHealthID = "disk-health"
	// manyBadSectors is what node-problem-detector takes for a bad disk.
	manyBadSectors = 100

	reasonDiskFailing    = "DiskFailing"
	reasonDiskBadSectors = "DiskBadSectors"
	reasonDiskHot        = "DiskTemperature"
)

// DiskHealth finds SATA and SAS disks that are about to fail. Memory may be nil: then sectors are counted from the
// start of the agent.
func DiskHealth(memory detect.StateStore) detect.Check {
	d := &diskHealthState{sectors: newErrorCounters(memory, diskHealthID)}
	return detect.Check{
		ID:      diskHealthID,
		Domain:  "storage",
		Summary: "a SATA or SAS disk says that it is about to fail, or cannot read some of its sectors",
		Advice: "See `smartctl -x /dev/DISK`. Failing: drain the node, save the data, replace the disk. Sectors that " +
			"cannot be read: their data are lost (`dmesg -T` tells which); writing them mends them, in an array a " +
			"check does (`echo check > /sys/block/ARRAY/md/sync_action`). A number that goes on growing: replace the disk.",
		Doc: detect.Doc{
			Reads: []string{
				"/sys/class/scsi_disk/*/device/{vendor,model,wwid,state,power/runtime_status}",
				"SMART of SATA disks (ATA PASS-THROUGH over SG_IO) and log pages 00h and 2Fh of SAS disks, in a " +
					"child process, every hour",
			},
			Why: "a disk that predicts its failure gives time to move the pods' data; afterwards it is too late",
			Faults: []detect.Fault{
				{Reason: reasonDiskFailing, Severity: finding.Warning, When: "the disk's own judgement: a threshold " +
					"of SMART was exceeded, or SCSI predicts a failure"},
				{Reason: reasonDiskBadSectors, Severity: finding.Warning, When: "100 sectors or more that cannot be " +
					"read (attributes 197, 198), or any growth of 5, 187, 197, 198 within a day; fewer: info"},
				{Reason: reasonDiskHot, Severity: finding.Warning, When: "a SAS disk says that it is too hot"},
			},
			FalseAlarms: "Old defects that do not grow are info at most. Raw values that each maker fills " +
				"differently are not looked at. Sleeping disks are not woken: what they said last is kept.",
		},
		Every:    5 * time.Minute,
		Deadline: time.Minute,
		Wakes: []detect.Wake{{Source: detect.WakeKernelLog, Match: "critical medium error, dev sd"},
			{Source: detect.WakeKernelLog, Match: "Sense Key : Medium Error"},
			{Source: detect.WakeKernelLog, Match: "Sense Key : Hardware Error"}},
		Run: d.look,
	}
}

// diskHealthState is what one look leaves for the next.
type diskHealthState struct {
	asks    diskAsks[diskSMART]
	sectors *errorCounters
}

func (m *diskHealthState) look(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	disks, err := scsiDisks(h.Files)
	if err != nil {
		return nil, err
	}
	m.asks.begin()
	var findings []finding.Finding
	doubts := make(map[finding.Subject]error)
	asked := 0
	for _, disk := range disks {
		d, ok := askable(h.Files, disk)
		if !ok {
			continue
		}
		answer, ok := m.ask(ctx, h, d)
		if !ok {
			continue
		}
		asked++
		f := finding.Finding{Check: diskHealthID, Subject: deviceSubject(d.name), Severity: finding.Warning}
		switch {
		case answer.err != nil:
			doubts[f.Subject] = answer.err
		case !answer.knows || !answer.said.known:
			asked-- // a virtual disk
		case answer.said.judge(&f, m.sectors.note(d.wwid, answer.said.badSectors(), h.Clock())):
			findings = append(findings, d.finding(ctx, h, f))
		}
	}
	if asked == 0 {
		return nil, finding.NotApplicable("no disk tells of its health")
	}
	return findings, finding.Partial(doubts)
}

// healthDisk is a disk that may be asked.
type healthDisk struct {
	scsiDisk
	ata              bool
	suspended        bool
	model, wwid, run string
}

// askable reports whether a disk is this machine's own, and in a state to be asked.
func askable(files host.Files, disk scsiDisk) (healthDisk, bool) {
	d := healthDisk{scsiDisk: disk}
	way, err := files.Link("/sys/block/" + disk.name)
	if err != nil || strings.Contains(way, "/usb") || strings.Contains(way, "/session") ||
		strings.Contains(way, "/rport-") {
		return d, false
	}
	var vendor, removable, runtime string
	for name, into := range map[string]*string{
		disk.dir + "/vendor": &vendor, disk.dir + "/model": &d.model, disk.dir + "/wwid": &d.wwid, disk.dir +
			"/state": &d.run,
		"/sys/block/" + disk.name + "/removable": &removable, disk.dir + "/power/runtime_status": &runtime,
	} {
		if *into, err = checkkit.OptionalDeviceText(files, name); err != nil {
			return d, false // it goes just now; scsi-device-state tells of its state
		}
	}
	d.ata, d.suspended = vendor == "ATA", runtime == "suspended" || runtime == "suspending"
	if d.wwid == "" {
		d.wwid = disk.address + " " + d.model
	}
	return d, removable != "1" && d.run == "running"
}

// ask asks the disk, unless that could wake it; false: nothing was ever heard of it.
func (m *diskHealthState) ask(ctx context.Context, h *host.Host, d healthDisk) (diskAnswer[diskSMART], bool) {
	before, known := m.asks.keep(d.name, d.wwid)
	if d.suspended {
		return before, known
	}
	request, parse := probe.ProbeRequest{Op: probe.ProbeSCSIHealth, Path: "/dev/" + d.name},
		parseInformationalExceptions
	if d.ata {
		request.Op, parse = probe.ProbeATAHealth, parseATAHealth
	}
	answer := m.asks.ask(ctx, h, request, d.wwid, parse)
	if answer.err == nil && answer.said.asleep && known {
		answer.knows, answer.said, answer.err = before.knows, before.said, before.err
		m.asks.fresh[d.name] = answer
	}
	return answer, true
}

func (d healthDisk) finding(ctx context.Context, h *host.Host, f finding.Finding) finding.Finding {
	f.Facts["model"], f.Facts["wwid"] = d.model, d.wwid
	f.Message = fmt.Sprintf("disk %s (%s) %s", d.name, d.model, f.Message)
	mounts, err := mount.Table(h)
	if err != nil || f.Severity == finding.Info {
		return f // what is known is enough
	}
	checkkit.AddNeededFor(&f, vitalWithoutSpare(h, mounts, d.name))
	checkkit.AddAffectedPods(&f, podsOnDisk(ctx, h, mounts, d.name))
	return f
}
