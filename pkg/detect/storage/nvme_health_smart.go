package storage

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// nvmeSMART has the evaluated fields of the health log.
type nvmeSMART struct {
	warning                       byte
	kelvin                        uint16
	spare, spareThreshold, usedUp uint8  // percent
	mediaErrors                   uint64 // since the disk was produced
}

// Bits of the critical warning.
const (
	warnSpare       = 1 << 0
	warnTemperature = 1 << 1
	warnReliability = 1 << 2
	warnReadOnly    = 1 << 3
	warnBackup      = 1 << 4
	warnMemory      = 1 << 5
)

// parseNVMeSMART parses log page 02h. A disk with a warning is unwell.
func parseNVMeSMART(page []byte) (log nvmeSMART, unwell bool, err error) {
	const size, mediaErrors = 512, 160
	if len(page) != size {
		return nvmeSMART{}, false, fmt.Errorf("%d bytes, want %d", len(page), size)
	}
	log = nvmeSMART{
		warning: page[0], kelvin: binary.LittleEndian.Uint16(page[1:]), spare: page[3], spareThreshold: page[4],
		usedUp:      page[5],
		mediaErrors: binary.LittleEndian.Uint64(page[mediaErrors:]),
	}
	if binary.LittleEndian.Uint64(page[mediaErrors+8:]) != 0 {
		log.mediaErrors = math.MaxUint64
	}
	if log.spare > 100 || log.spareThreshold > 100 {
		return nvmeSMART{}, false, fmt.Errorf("spare of %d %%, threshold of %d %%", log.spare, log.spareThreshold)
	}
	return log, log.warning != 0 || log.spareShort(), nil
}

func (l nvmeSMART) spareShort() bool {
	return l.warning&warnSpare != 0 || l.spareThreshold > 0 && l.spare < l.spareThreshold
}

// evaluate puts the most severe fault into f.
func (l nvmeSMART) evaluate(f *finding.Finding, grown uint64) bool {
	switch {
	case l.warning&warnReadOnly != 0:
		f.Reason, f.Message = reasonNVMeRO, "takes no more writes"
	case l.warning&warnReliability != 0:
		f.Reason, f.Message = reasonNVMeFailing, "reports that errors have made it unreliable"
	case l.warning&(warnBackup|warnMemory) != 0:
		f.Reason, f.Message = reasonNVMeFailing, "reports that its memory is no longer safe when power fails"
	case l.spareShort():
		f.Reason, f.Message = reasonNVMeSpare, fmt.Sprintf("has %d %% of its spare blocks left, its threshold is %d %%",
			l.spare, l.spareThreshold)
	case grown > 0:
		f.Reason, f.Message = reasonNVMeMedia, fmt.Sprintf("had %d more errors of its medium within a day, %d in all",
			grown, l.mediaErrors)
	case l.warning&warnTemperature != 0:
		f.Reason, f.Message = reasonNVMeHot, fmt.Sprintf("is at %d °C, which is beyond its own limits",
			int(l.kelvin)-273)
	case l.usedUp >= 100:
		f.Severity, f.Reason, f.Message = finding.Info, reasonNVMeWorn,
			fmt.Sprintf("has used %d %% of its life, as its vendor estimates it", l.usedUp)
	default:
		return false
	}
	f.Facts = map[string]string{
		"criticalWarning": fmt.Sprintf("%#02x", l.warning), "spare": fmt.Sprint(l.spare),
		"spareThreshold": fmt.Sprint(l.spareThreshold),
		"percentageUsed": fmt.Sprint(l.usedUp), "mediaErrors": fmt.Sprint(l.mediaErrors),
		"celsius": fmt.Sprint(int(l.kelvin) - 273),
	}
	return true
}
