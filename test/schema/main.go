// Applies upstream's own libraries to objects, patches and selectors. It reads one JSON request per line and writes one JSON
// response per line. crates/apiserver/tests/upstream compares our schemas, patches and selectors with the responses.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"reflect"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	events "k8s.io/api/events/v1"
	policy "k8s.io/api/policy/v1"
	storage "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	kjson "sigs.k8s.io/json"
)

// A kind that the API server stores, encoded as protobuf.
type stored interface {
	runtime.Object
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

var kinds = map[string]reflect.Type{}

func register(group string, objects ...stored) {
	for _, object := range objects {
		of := reflect.TypeOf(object).Elem()
		kinds[group+"/"+of.Name()] = of
	}
}

func init() {
	register("", &core.Namespace{}, &core.Node{}, &core.Pod{}, &core.PersistentVolume{}, &core.PersistentVolumeClaim{},
		&core.Secret{}, &core.ConfigMap{}, &core.Event{}, &core.ServiceAccount{})
	register("events.k8s.io", &events.Event{})
	register("coordination.k8s.io", &coordination.Lease{})
	register("storage.k8s.io", &storage.StorageClass{}, &storage.CSIDriver{}, &storage.CSINode{},
		&storage.CSIStorageCapacity{}, &storage.VolumeAttachment{}, &storage.VolumeAttributesClass{})
	// Not stored: request bodies only.
	register("", &core.Binding{})
	register("policy", &policy.Eviction{})
	register("authentication.k8s.io", &authentication.TokenRequest{}, &authentication.TokenReview{},
		&authentication.SelfSubjectReview{})
	register("authorization.k8s.io", &authorization.SubjectAccessReview{}, &authorization.LocalSubjectAccessReview{},
		&authorization.SelfSubjectAccessReview{}, &authorization.SelfSubjectRulesReview{})
}

type request struct {
	What, Group, Kind, Text string
	Object, Patch           json.RawMessage
	Labels                  map[string]string
}

type response struct {
	Object  any      `json:"object,omitempty"`
	Unknown []string `json:"unknown,omitempty"`
	Matches *bool    `json:"matches,omitempty"`
	Error   string   `json:"error,omitempty"`
	// The object as clients send it.
	Protobuf []byte `json:"protobuf,omitempty"`
	// Upstream's library panicked, so there is no result to compare.
	Panic string `json:"panic,omitempty"`
}

func respond(q request) (a response) {
	defer func() {
		if r := recover(); r != nil {
			a = response{Panic: fmt.Sprint(r)}
		}
	}()
	var err error
	switch q.What {
	case "conform":
		a.Object, a.Protobuf, a.Unknown, err = conform(q)
	case "strategic":
		a.Object, err = strategic(q)
	case "json":
		var patch jsonpatch.Patch
		if patch, err = jsonpatch.DecodePatch(q.Patch); err == nil {
			a.Object, err = raw(patch.Apply(q.Object))
		}
	case "merge":
		a.Object, err = raw(jsonpatch.MergePatch(q.Object, q.Patch))
	case "labels":
		var selector labels.Selector
		if selector, err = labels.Parse(q.Text); err == nil {
			matches := selector.Matches(labels.Set(q.Labels))
			a.Matches = &matches
		}
	case "fields":
		var selector fields.Selector
		if selector, err = fields.ParseSelector(q.Text); err == nil {
			matches := selector.Matches(fields.Set(q.Labels))
			a.Matches = &matches
		}
	}
	if err != nil {
		return response{Error: err.Error()}
	}
	return a
}

func raw(text []byte, err error) (any, error) { return json.RawMessage(text), err }

// conform returns the object as the API server returns it after it was stored, and the protobuf message that a client would
// send for it.
func conform(q request) (any, []byte, []string, error) {
	of := kinds[q.Group+"/"+q.Kind]
	read := reflect.New(of).Interface().(stored)
	strict, err := kjson.UnmarshalStrict(q.Object, read)
	if err != nil {
		return nil, nil, nil, err
	}
	var unknown []string
	for _, one := range strict {
		unknown = append(unknown, one.Error())
	}
	text, err := read.Marshal()
	if err != nil {
		return nil, nil, nil, err
	}
	kept := reflect.New(of).Interface().(stored)
	if err := kept.Unmarshal(text); err != nil {
		return nil, nil, nil, err
	}
	var sent bytes.Buffer
	read.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{Group: q.Group, Version: "v1", Kind: q.Kind})
	err = protobuf.NewSerializer(nil, nil).Encode(read, &sent)
	return kept, sent.Bytes(), unknown, err
}

func strategic(q request) (any, error) {
	var object, patch map[string]any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(q.Object, &object); err != nil {
		return nil, err
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(q.Patch, &patch); err != nil {
		return nil, err
	}
	return strategicpatch.StrategicMergeMapPatch(object, patch, reflect.New(kinds[q.Group+"/"+q.Kind]).Interface())
}

func main() {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 64<<20)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for in.Scan() {
		var q request
		if err := json.Unmarshal(in.Bytes(), &q); err != nil {
			panic(err)
		}
		text, err := json.Marshal(respond(q))
		if err != nil {
			text, _ = json.Marshal(response{Panic: err.Error()})
		}
		out.Write(append(text, '\n'))
	}
	if err := in.Err(); err != nil {
		panic(err)
	}
}
