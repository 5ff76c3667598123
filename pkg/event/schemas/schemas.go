// Package schemas has the JSON Schemas of the data of events, one file for each type: the attribute "dataschema" of an
// event refers to it. They are open: readers ignore unknown members, because agents and centers are upgraded at
// different times. A version of a type keeps all of its promises.
package schemas

import (
	"embed"
	"io/fs"
)

//go:embed *.v1.json
var files embed.FS

// Of returns a schema by the name of its file, such as "fault.raised.v1.json", or nil if there is none.
func Of(name string) []byte {
	text, err := files.ReadFile(name)
	if err != nil {
		return nil
	}
	return text
}

// Names returns the names of all schemas, sorted.
func Names() []string {
	names, _ := fs.Glob(files, "*") // the pattern is well-formed
	return names
}
