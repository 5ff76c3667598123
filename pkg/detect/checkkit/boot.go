package checkkit

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// BootTime returns when this boot began by the present wall clock, which is the one that ext4 stamps errors with.
func BootTime(now finding.Timestamp) time.Time { return now.Wall.Add(-now.SinceBoot) }

// BootFactTTL is how long a fact of the last boot is told.
const BootFactTTL = 24 * time.Hour
