// Package schemas has the JSON Schemas of the data of events, a file for each type: what the attribute "dataschema" of an
// event names. They are open: members that a reader does not know are ignored, since agents and centers are upgraded at
// different times. What a version of a type has promised stays.
package schemas

import (
	"embed"
	"io/fs"
)

//go:embed *.v1.json
var files embed.FS

// Of returns a schema by the name of its file, such as "fault.raised.v1.json"; nil: there is none.
func Of(name string) []byte {
	text, err := files.ReadFile(name)
	if err != nil {
		return nil
	}
	return text
}

// Names are those of all schemas, sorted.
func Names() []string {
	names, _ := fs.Glob(files, "*") // the pattern is well-formed
	return names
}
