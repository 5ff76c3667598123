package status

import (
	"errors"
	"time"
)

// ContainerPaths are the files that an agent still reads from the container that it has left, by paths that other
// processes can open: they lead through the agent's own descriptors. All are empty if the agent was started on the
// host. They are not published as links, because the PID of an ended process may be reused.
type ContainerPaths struct {
	Config         string `json:"config,omitempty"`         // configuration file
	ServiceAccount string `json:"serviceAccount,omitempty"` // directory of the pod's token
	Apiserver      string `json:"apiserver,omitempty"`      // host:port for it
}

// ErrRefused means that the configuration was not put in force; the previous one still is.
var ErrRefused = errors.New("the configuration is refused")

// ReloadLimit is how long a reload may take: the old agent ends, and the new one discovers the node.
const ReloadLimit = 25 * time.Second

// SinkStatus is the status of one reporter's sink.
type SinkStatus struct {
	Reporter    string    `json:"reporter"`          // condition, configmap, event, eventcenter
	Last        time.Time `json:"last,omitzero"`     // last successful write
	Waiting     int       `json:"waiting,omitempty"` // not written yet
	Failing     time.Time `json:"failing,omitzero"`  // since when writes fail; zero while they succeed
	Why         string    `json:"why,omitempty"`     // error of the last attempt
	Dropped     int       `json:"dropped,omitempty"` // because too much waited
	Endpoint    string    `json:"endpoint,omitempty"`
	Quarantined int       `json:"setAside,omitempty"` // the sink will never accept it; kept
	Seen        *Seen     `json:"seen,omitempty"`     // nil: the content was not observed
}

// Seen is the observed content of a sink, whoever wrote it.
type Seen struct {
	At    time.Time `json:"at"`
	Shows string    `json:"shows"`
}
