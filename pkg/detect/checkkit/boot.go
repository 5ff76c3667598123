package checkkit

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// BootTime returns the start of this boot by the current wall clock; ext4 stamps errors with wall clock time.
func BootTime(now finding.Timestamp) time.Time { return now.Wall.Add(-now.SinceBoot) }

// BootFactTTL is how long a fact of the last boot is reported.
const BootFactTTL = 24 * time.Hour
