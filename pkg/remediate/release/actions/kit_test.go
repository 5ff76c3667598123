package actions

import (
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

func leftover(kind object.Kind, id string) object.Assessment {
	return object.Assessment{
		Object:  object.Object{Kind: kind, ID: id, Pod: object.Pod{UID: "11111111-0000-4000-8000-000000000000"}},
		Verdict: object.Leftover,
	}
}
