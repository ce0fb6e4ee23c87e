// Translates volumes and classes of in-tree plugins with upstream's own library. It reads one JSON request per line and writes
// one JSON response per line. crates/model/tests/translation compares our translations with the responses.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"

	core "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	csitranslation "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"
)

type request struct {
	// The function: volume, created, class or repair.
	What   string
	Object json.RawMessage
	// For repair.
	Driver, Handle, NodeID string
}

type response struct {
	Object any    `json:"object,omitempty"`
	Error  string `json:"error,omitempty"`
	// Upstream's library panicked, so there is no result to compare.
	Panic string `json:"panic,omitempty"`
}

func respond(q request) (a response) {
	defer func() {
		if reason := recover(); reason != nil {
			a = response{Panic: fmt.Sprint(reason)}
		}
	}()
	translator := csitranslation.New()
	var object any
	var err error
	switch q.What {
	case "volume":
		volume := &core.PersistentVolume{}
		if err = json.Unmarshal(q.Object, volume); err == nil {
			object, err = translator.TranslateInTreePVToCSI(klog.Background(), volume)
		}
	case "created":
		volume := &core.PersistentVolume{}
		if err = json.Unmarshal(q.Object, volume); err == nil {
			object, err = translator.TranslateCSIPVToInTree(volume)
		}
	case "class":
		class := &storage.StorageClass{}
		if err = json.Unmarshal(q.Object, class); err == nil {
			object, err = translator.TranslateInTreeStorageClassToCSI(klog.Background(), class.Provisioner, class)
		}
	case "repair":
		object, err = translator.RepairVolumeHandle(q.Driver, q.Handle, q.NodeID)
	default:
		err = fmt.Errorf("unknown request %q", q.What)
	}
	if err != nil {
		return response{Error: err.Error()}
	}
	return response{Object: object}
}

func main() {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	in, out := bufio.NewReader(os.Stdin), json.NewEncoder(os.Stdout)
	requests := json.NewDecoder(in)
	for requests.More() {
		var q request
		if err := requests.Decode(&q); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if err := out.Encode(respond(q)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
