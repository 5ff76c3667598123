package checkkit

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// BootTime returns when this boot began by the present wall clock, with which ext4 stamps errors.
func BootTime(now finding.Timestamp) time.Time { return now.Wall.Add(-now.SinceBoot) }

// BootFactTTL is how long a fact of the last boot is reported.
const BootFactTTL = 24 * time.Hour
