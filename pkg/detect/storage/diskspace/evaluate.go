package diskspace

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// spaceFault is one way in which a filesystem lacks space.
type spaceFault struct {
	reason     string
	severity   finding.Severity
	text       string
	belowRaise bool
	fullIn     time.Duration // 0: no prediction
}

const (
	spaceKeep   = 1.2 // multiple of the threshold that must be free to clear a raised finding
	fillingKeep = 1.5 // multiple of the threshold of the remaining time
	// fillingSoon and fillingSoonPercent make a prediction a warning, fillingPercent makes it a finding: see
	// fsSpaceFillingUpWarningThreshold of kube-prometheus, which has 20 and 15 because kubelet collects images at 15.
	fillingSoon        = 4 * time.Hour
	fillingSoonPercent = 15
	fillingPercent     = 20
)

// evaluate returns the most severe fault. wasFull: the last run found it full; fullIn is the prediction, or 0.
func (s space) evaluate(set Settings, wasFull bool, fullIn time.Duration) (spaceFault, bool) {
	if s.answer.TotalBytes == 0 {
		return spaceFault{}, false // it does not count its blocks
	}
	faults := append(s.exhausted(set, wasFull), s.low(set)...)
	if fault, found := s.filling(set, fullIn); found {
		faults = append(faults, fault)
	}
	i := slices.IndexFunc(faults, func(f spaceFault) bool { return !f.belowRaise })
	switch {
	case len(faults) == 0:
		return spaceFault{}, false
	case i < 0:
		i = 0
	}
	faults[i].fullIn = fullIn
	return faults[i], true
}

// exhausted finds filesystems that take no more writes: those without a free byte or inode, and, of the node itself,
// already those with too little for root, under which its daemons run. Only the latter are fatal.
func (s space) exhausted(set Settings, wasFull bool) []spaceFault {
	severity := finding.Fatal
	if len(s.holds) == 0 {
		severity, set.FatalBytes, set.FatalInodes = finding.Warning, 0, 0
	}
	more := uint64(1)
	if wasFull {
		more = 2
	}
	var faults []spaceFault
	// ext4 reserves 2 % of the free space, at most 16 MiB, for itself; root cannot use that either.
	limit := min(set.FatalBytes, s.answer.TotalBytes/100*3) * more
	if s.rootBytes() < limit || len(s.holds) == 0 && nothingLeft(s.answer.FreeBytes, s.answer.FreePercent(), wasFull) {
		faults = append(faults, spaceFault{reason: reasonDiskFull, severity: severity, text: "is full"})
	}
	limit = min(set.FatalInodes, s.answer.Inodes/100) * more
	if s.answer.FreeInodes < limit ||
		s.answer.Inodes > 0 && nothingLeft(s.answer.FreeInodes, s.answer.FreeInodePercent(), wasFull) {
		faults = append(faults, spaceFault{reason: reasonInodesGone, severity: severity, text: "has no inodes left"})
	}
	return faults
}

// nothingLeft reports whether a filesystem is completely full; once it was, it counts as full until 1 % is free.
func nothingLeft(free uint64, percent float64, wasFull bool) bool {
	return free == 0 || wasFull && percent < 1
}

// rootBytes is how much root can still write. btrfs reports f_bavail 0 if only its data has free space: then root
// cannot write either.
func (s space) rootBytes() uint64 {
	if s.Principal.FSType == "btrfs" {
		return s.answer.FreeBytes
	}
	return s.answer.RootBytes
}

// low finds filesystems with little free space.
func (s space) low(set Settings) []spaceFault {
	threshold, enough := set.Percent, set.EnoughBytes
	switch {
	case len(s.holds) > 0:
		threshold, enough = set.NodePercent, ^uint64(0)
	case s.volume:
		threshold = set.VolumePercent
	}
	var faults []spaceFault
	if free := s.answer.FreePercent(); free < threshold*spaceKeep && s.answer.FreeBytes < enough {
		faults = append(faults, spaceFault{reason: reasonDiskSpaceLow, severity: finding.Warning,
			text: "has little space left", belowRaise: free >= threshold})
	}
	if free := s.answer.FreeInodePercent(); free < set.InodePercent*spaceKeep {
		faults = append(faults, spaceFault{reason: reasonInodesLow, severity: finding.Warning,
			text: "has few inodes left", belowRaise: free >= set.InodePercent})
	}
	return faults
}

// filling finds filesystems that will be full soon.
func (s space) filling(set Settings, fullIn time.Duration) (spaceFault, bool) {
	keep := time.Duration(float64(set.FullWithin) * fillingKeep)
	free := s.answer.FreePercent()
	if fullIn <= 0 || fullIn >= keep || free >= fillingPercent*spaceKeep {
		return spaceFault{}, false
	}
	f := spaceFault{
		reason: reasonDiskFilling, severity: finding.Info, text: "fills up",
		belowRaise: fullIn >= set.FullWithin || free >= fillingPercent,
	}
	if fullIn < fillingSoon && free < fillingSoonPercent {
		f.severity = finding.Warning
	}
	return f, true
}

// report returns the finding.
func (s space) report(f spaceFault, pods []string, images uint64) finding.Finding {
	a := s.answer
	facts := map[string]string{
		"device": s.Device, "source": s.Principal.Source, "fstype": s.Principal.FSType,
		"freeBytes": fmt.Sprint(a.FreeBytes), "rootBytes": fmt.Sprint(a.RootBytes),
		"totalBytes":  fmt.Sprint(a.TotalBytes),
		"freePercent": fmt.Sprintf("%.1f", s.answer.FreePercent()),
	}
	message := fmt.Sprintf("%s (%s on %s) %s: %s of %s free (%.1f %%)", s.Principal.Point, s.Principal.FSType,
		s.Principal.Source, f.text, bytesText(a.FreeBytes), bytesText(a.TotalBytes), s.answer.FreePercent())
	if a.RootBytes > a.FreeBytes {
		message += fmt.Sprintf(", %s for root", bytesText(a.RootBytes))
	}
	if a.Inodes > 0 {
		facts["freeInodes"], facts["inodes"] = fmt.Sprint(a.FreeInodes), fmt.Sprint(a.Inodes)
		message += fmt.Sprintf(", %d of %d inodes free", a.FreeInodes, a.Inodes)
	}
	if f.fullIn > 0 {
		facts["fullInHours"] = fmt.Sprintf("%.1f", f.fullIn.Hours())
		message += fmt.Sprintf("; at this rate full in %.1f hours", f.fullIn.Hours())
	}
	if len(s.holds) > 0 {
		facts["holds"] = strings.Join(s.holds, ", ")
		message += "; holds " + facts["holds"]
	}
	if images > 0 {
		facts["imageBytes"] = fmt.Sprint(images)
		message += fmt.Sprintf("; images and containers take %s", bytesText(images))
	}
	full := finding.Finding{
		Subject: s.Subject(), Severity: f.severity,
		Reason: f.reason, Message: message, Facts: facts, BelowRaise: f.belowRaise,
	}
	checkkit.AddPods(&full, "; volume of ", pods)
	return full
}

// bytesText is a number of bytes for people: "1.5 GiB".
func bytesText(n uint64) string {
	value, unit := float64(n), 0
	units := []string{"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	for value >= 1024 {
		value, unit = value/1024, unit+1
	}
	if unit == 0 {
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprintf("%.1f %s", value, units[unit])
}
