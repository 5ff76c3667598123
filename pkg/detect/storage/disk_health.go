package storage

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// disk-health queries the SMART status of SATA and SAS disks every hour, in a child process.
//
// ATA, through SAT (ATA PASS-THROUGH 16 over SG_IO; ACS-4, SAT-5): CHECK POWER MODE; and of a disk that does not
// sleep SMART RETURN STATUS (F4h 2Ch in LBA mid and high: a threshold was exceeded), SMART READ DATA (30 attributes
// of 12 bytes from byte 2: number, flags (bit 0 of the first: announces a failure), value, worst, raw value of 6 bytes;
// a checksum at the end) and SMART READ THRESHOLDS (30 of 12 bytes: number, threshold). Raw values of four attributes
// mean the same with nearly all vendors: 5 reallocated sectors, 187 reported uncorrectable errors, 197 pending sectors,
// which cannot be read, 198 those that a scan of the disk itself could not read.
//
// SCSI (LOG SENSE over SG_IO; SPC-4): page 00h, and 2Fh, informational exceptions, where that lists it: additional
// sense code 5Dh predicts a failure, 0Bh 01h reports that it is too hot.
//
//	/sys/class/scsi_disk/0:0:0:0/device/{vendor,model,wwid,state,power/runtime_status}     vendor ATA: a SATA disk
//	/sys/block/sda      -> ../devices/pci0000:00/…/ata1/host0/…/block/sda
//
// Only commands that read are sent; SMART that is disabled stays so. A disk that the kernel has suspended is not
// queried, and one that sleeps by itself only whether it does. Disks of another machine (iSCSI, Fibre Channel), on USB
// (bridges hang on unknown commands), removable ones, and those without such commands (virtual disks, volumes of RAID
// controllers) are left out.

const (
	manyBadSectors = 100 // the same as in node-problem-detector's rule for smartd's log

	reasonDiskFailing    = "DiskFailing"
	reasonDiskBadSectors = "DiskBadSectors"
	reasonDiskHot        = "DiskTemperature"
)

// DiskHealth finds SATA and SAS disks that are about to fail. The store may be nil: then sectors are counted from the
// start of the agent.
func DiskHealth(store detect.StateStore) detect.Check {
	d := &diskHealthState{sectors: newErrorCounters(store, "disk-health")}
	return detect.Check{
		ID: "disk-health", Domain: "storage",
		Summary: "a SATA or SAS disk reports that it is about to fail, or cannot read some of its sectors",
		Advice: "See `smartctl -x /dev/DISK`. Failing: drain the node, save the data, replace the disk. Sectors " +
			"that cannot be read: their data are lost (`dmesg -T` shows which); writing repairs them, which in an " +
			"array a check does (`echo check > /sys/block/ARRAY/md/sync_action`). If the number keeps growing, " +
			"replace the disk.",
		Doc: detect.Doc{
			Reads: []string{
				"/sys/class/scsi_disk/*/device/{vendor,model,wwid,state,power/runtime_status}",
				"SMART of SATA disks (ATA PASS-THROUGH over SG_IO) and log pages 00h and 2Fh of SAS disks, in a " +
					"child process, every hour",
			},
			Why: "A disk that predicts its failure gives time to move the pods' data; afterwards it is too late.",
			Faults: []detect.Fault{
				{Reason: reasonDiskFailing, Severity: finding.Warning, When: "the disk reports it: a threshold of " +
					"SMART was exceeded, or SCSI predicts a failure"},
				{Reason: reasonDiskBadSectors, Severity: finding.Warning, When: "100 sectors or more that cannot be " +
					"read (attributes 197, 198), or any growth of 5, 187, 197, 198 within a day; fewer: info"},
				{Reason: reasonDiskHot, Severity: finding.Warning, When: "a SAS disk reports that it is too hot"},
			},
			FalseAlarms: "Old defects that do not grow are info at most; pending sectors disappear when they are " +
				"written. Raw values that each vendor uses differently count only where the disk itself has a " +
				"threshold for them. Sleeping disks are not woken: their last report is kept.",
		},
		Every: 5 * time.Minute, Deadline: time.Minute,
		Wakes: []detect.Wake{checkkit.LogWake("critical medium error, dev sd"),
			checkkit.LogWake("Sense Key : Medium Error"), checkkit.LogWake("Sense Key : Hardware Error")},
		Run: d.run,
	}
}

// diskHealthState is kept between runs.
type diskHealthState struct {
	answers diskAnswers[diskSMART]
	sectors *errorCounters
}

func (m *diskHealthState) run(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	disks, err := scsiDisks(h.Files)
	if err != nil {
		return nil, err
	}
	m.answers.begin()
	var results checkkit.Results
	queried := 0
	for _, disk := range disks {
		d, ok := healthDiskOf(h.Files, disk)
		if !ok {
			continue
		}
		answer, ok := m.query(ctx, h, d)
		if !ok {
			continue
		}
		queried++
		f := finding.Finding{Subject: deviceSubject(d.name), Severity: finding.Warning}
		switch {
		case answer.err != nil:
			results.Doubt(f.Subject, answer.err)
		case !answer.supported || !answer.health.known:
			queried-- // a virtual disk
		case answer.health.evaluate(&f, m.sectors.add(d.wwid, answer.health.badSectors(), h.Clock())):
			results.Add(d.finding(ctx, h, f), true)
		}
	}
	if queried == 0 {
		return nil, finding.NotApplicable("no disk reports its health")
	}
	return results.Done()
}

// healthDisk is a disk that may be queried.
type healthDisk struct {
	scsiDisk
	ata              bool
	suspended        bool
	model, wwid, run string
}

// healthDiskOf reports whether a disk is this machine's own, and in a state to be queried.
func healthDiskOf(files host.Files, disk scsiDisk) (healthDisk, bool) {
	d := healthDisk{scsiDisk: disk}
	target, err := files.Link("/sys/block/" + disk.name)
	if err != nil || strings.Contains(target, "/usb") || strings.Contains(target, "/session") ||
		strings.Contains(target, "/rport-") {
		return d, false
	}
	var vendor, removable, runtime string
	for name, into := range map[string]*string{
		disk.dir + "/vendor": &vendor, disk.dir + "/model": &d.model, disk.dir + "/wwid": &d.wwid,
		disk.dir + "/state":                      &d.run,
		"/sys/block/" + disk.name + "/removable": &removable, disk.dir + "/power/runtime_status": &runtime,
	} {
		if *into, err = checkkit.OptionalDeviceText(files, name); err != nil {
			return d, false // it is being removed; scsi-device-state reports its state
		}
	}
	d.ata, d.suspended = vendor == "ATA", runtime == "suspended" || runtime == "suspending"
	if d.wwid == "" {
		d.wwid = disk.address + " " + d.model
	}
	return d, removable != "1" && d.run == "running"
}

// query queries the disk, unless that could wake it; false: it has never reported its health.
func (m *diskHealthState) query(ctx context.Context, h *host.Host, d healthDisk) (diskAnswer[diskSMART], bool) {
	before, known := m.answers.keep(d.name, d.wwid)
	if d.suspended {
		return before, known
	}
	request, parse := probe.ProbeRequest{Op: probe.ProbeSCSIHealth, Path: "/dev/" + d.name},
		parseInformationalExceptions
	if d.ata {
		request.Op, parse = probe.ProbeATAHealth, parseATAHealth
	}
	answer := m.answers.query(ctx, h, request, d.wwid, parse)
	if answer.err == nil && answer.health.asleep && known {
		answer.supported, answer.health, answer.err = before.supported, before.health, before.err
		m.answers.fresh[d.name] = answer
	}
	return answer, true
}

func (d healthDisk) finding(ctx context.Context, h *host.Host, f finding.Finding) finding.Finding {
	f.Facts["model"], f.Facts["wwid"] = d.model, d.wwid
	f.Message = fmt.Sprintf("disk %s (%s) %s", d.name, d.model, f.Message)
	if f.Severity != finding.Info {
		addImpact(ctx, h, &f, true, false, d.name)
	}
	return f
}

// diskSMART is the health that a disk reports.
type diskSMART struct {
	known   bool   // it supports such commands, and has them enabled
	asleep  bool   // and the query ended there
	failing string // why it predicts its failure; empty if it does not
	hot     bool
	// Raw values of ATA attributes: reallocated sectors, reported uncorrectable errors, pending sectors, sectors that a
	// scan could not read. Zero if the disk has no such attribute.
	reallocated, reported, pending, unreadable uint64
}

// badSectors is the number whose growth announces a failure.
func (s diskSMART) badSectors() uint64 { return s.reallocated + s.reported + s.pending + s.unreadable }

const (
	ataSense = 32
	ataPage  = 512
)

// parseATAHealth parses the result of host.ProbeATAHealth.
func parseATAHealth(data []byte) (s diskSMART, unwell bool, err error) {
	const full = 2*ataSense + 2*ataPage
	if len(data) != ataSense && len(data) != full {
		return diskSMART{}, false, fmt.Errorf("%d bytes, want %d or %d", len(data), ataSense, full)
	}
	power, ok := probe.ParseATASense(data[:ataSense])
	if !ok {
		return diskSMART{}, false, nil // the adapter does not return the registers: not a SATA disk that can be queried
	}
	if power.Asleep() || len(data) == ataSense {
		return diskSMART{asleep: true}, false, nil
	}
	status, ok := probe.ParseATASense(data[ataSense : 2*ataSense])
	switch {
	case ok && status.LBAMid == 0xf4 && status.LBAHigh == 0x2c:
		s.known, s.failing = true, "a threshold was exceeded"
	case ok && status.LBAMid == 0x4f && status.LBAHigh == 0xc2:
		s.known = true
	}
	values, thresholds := data[2*ataSense:2*ataSense+ataPage], data[2*ataSense+ataPage:]
	if sound(values) {
		s.known = true
		s.attributes(values, thresholds)
	}
	return s, s.failing != "" || s.pending+s.unreadable > 0, nil
}

// sound reports whether a page of 512 bytes is not empty and has a checksum of zero, like SMART's pages.
func sound(page []byte) bool {
	var sum, any byte
	for _, b := range page {
		sum += b
		any |= b
	}
	return sum == 0 && any != 0
}

// attributes reads the table of attributes. Raw values have 4 bytes, or 2 if vendors use the others for other data.
func (s *diskSMART) attributes(values, thresholds []byte) {
	const first, size, count = 2, 12, 30
	limits := make(map[byte]byte)
	if sound(thresholds) {
		for i := range count {
			entry := thresholds[first+i*size:]
			limits[entry[0]] = entry[1]
		}
	}
	var exceeded []string
	for i := range count {
		entry := values[first+i*size : first+(i+1)*size]
		number, failure, value, raw := entry[0], entry[1]&1 != 0, entry[3], entry[5:]
		switch number { // see the head of the file
		case 5:
			s.reallocated = uint64(binary.LittleEndian.Uint32(raw))
		case 187:
			s.reported = uint64(binary.LittleEndian.Uint16(raw))
		case 197:
			s.pending = uint64(binary.LittleEndian.Uint32(raw))
		case 198:
			s.unreadable = uint64(binary.LittleEndian.Uint32(raw))
		}
		// 0, FEh and FFh are no values; neither are these thresholds.
		if limit := limits[number]; number != 0 && failure && limit > 0 && limit < 0xfe && value > 0 && value < 0xfe &&
			value <= limit {
			exceeded = append(exceeded, fmt.Sprintf("attribute %d is %d, its threshold %d", number, value, limit))
		}
	}
	if len(exceeded) > 0 {
		s.failing = strings.Join(exceeded, ", ")
	}
}

// parseInformationalExceptions parses the result of host.ProbeSCSIHealth: log pages 00h and, if that lists it, 2Fh,
// each in 256 bytes. Page 2Fh: page code, subpage, length (2 bytes, big endian), parameters: code (2), control, length,
// additional sense code and its qualifier, temperature.
func parseInformationalExceptions(data []byte) (s diskSMART, unwell bool, err error) {
	const size, header = 256, 4
	if len(data) != size && len(data) != 2*size {
		return diskSMART{}, false, fmt.Errorf("%d bytes, want %d or %d", len(data), size, 2*size)
	}
	if len(data) == size {
		return diskSMART{}, false, nil // the disk has no such page
	}
	page := data[size:]
	length := int(binary.BigEndian.Uint16(page[2:]))
	if page[0]&0x3f != 0x2f || length < 6 || length > size-header || binary.BigEndian.Uint16(page[4:]) != 0 ||
		page[7] < 2 {
		return diskSMART{}, false, fmt.Errorf("log page 2Fh begins with % x", page[:12])
	}
	const (
		predicted, warning = 0x5d, 0x0b
		onlyATest, tooHot  = 0xff, 0x01
	)
	s.known = true
	switch code, qualifier := page[8], page[9]; {
	case code == predicted && qualifier != onlyATest:
		s.failing = fmt.Sprintf("sense code %02Xh %02Xh", code, qualifier)
	case code == warning && qualifier == tooHot:
		s.hot = true
	}
	return s, s.failing != "" || s.hot, nil
}

// evaluate puts the most severe fault into f.
func (s diskSMART) evaluate(f *finding.Finding, grown uint64) bool {
	lost := max(s.pending, s.unreadable) // mostly the same sectors
	switch {
	case s.asleep:
		return false
	case s.failing != "":
		f.Reason, f.Message = reasonDiskFailing, "reports that it is about to fail: "+s.failing
	case grown > 0:
		f.Reason, f.Message = reasonDiskBadSectors, fmt.Sprintf("had %d more defects within a day: %s", grown,
			s.defects())
	case lost >= manyBadSectors:
		f.Reason, f.Message = reasonDiskBadSectors, "cannot read many of its sectors: "+s.defects()
	case s.hot:
		f.Reason, f.Message = reasonDiskHot, "reports that it is too hot"
	case lost > 0:
		f.Severity, f.Reason, f.Message = finding.Info, reasonDiskBadSectors, "cannot read some of its sectors: "+
			s.defects()
	default:
		return false
	}
	f.Facts = map[string]string{
		"reallocated": fmt.Sprint(s.reallocated), "reportedUncorrectable": fmt.Sprint(s.reported),
		"pending": fmt.Sprint(s.pending), "unreadable": fmt.Sprint(s.unreadable),
	}
	return true
}

func (s diskSMART) defects() string {
	return fmt.Sprintf("%d reallocated, %d reported uncorrectable, %d pending, %d unreadable", s.reallocated,
		s.reported, s.pending, s.unreadable)
}
