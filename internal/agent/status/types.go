package status

import (
	"errors"
	"time"
)

// ContainerPaths is where another process finds what an agent that has left its container goes on reading there: the
// paths lead through the agent's own descriptors. All is empty where the agent was started on the host. They are
// asked for on the socket and not published as links: the number of a process that has ended may become another's.
type ContainerPaths struct {
	Config         string `json:"config,omitempty"`         // configuration file
	ServiceAccount string `json:"serviceAccount,omitempty"` // directory of the pod's token
	Apiserver      string `json:"apiserver,omitempty"`      // host:port for it
}

// ErrRefused says that the configuration was not put in force; the agent goes on with the one that it had.
var ErrRefused = errors.New("the configuration is refused")

// ReloadLimit is how long a reload may take: the old agent ends within stopGrace, the new one opens its doors.
const ReloadLimit = 25 * time.Second

// SinkStatus is how telling one kind of listener goes.
type SinkStatus struct {
	Reporter string    `json:"reporter"`          // condition, event
	Last     time.Time `json:"last,omitzero"`     // when something last arrived
	Waiting  int       `json:"waiting,omitempty"` // what waits to be told
	Failing  time.Time `json:"failing,omitzero"`  // since when nothing arrives; zero while it does
	Why      string    `json:"why,omitempty"`     // what the last attempt failed with
	Dropped  int       `json:"dropped,omitempty"` // given up because too much waited
}
