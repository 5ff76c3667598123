package baseline

import (
	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/stage"
)

// Cell are the times of a stage in one hour on nodes of one build.
type Cell struct {
	Hour   int64
	Stage  stage.ID
	Cached bool // no image was pulled
	Build  record.Build
	Times  Histogram
}
