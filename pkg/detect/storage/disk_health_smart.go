package storage

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

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
		switch number { // see the head of disk_health.go
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
