// Browsers start no worker for a page that is opened as a file, and the search of the theme needs one. On such pages
// this puts a hidden frame in its place: the script of the worker runs there, with the messages that a worker has.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      script.src = url;
      const loaded = new Promise((resolve) => script.addEventListener("load", resolve));
      this.postMessage = (data) => loaded.then(() => inside.dispatchEvent(new MessageEvent("message", { data })));
      this.terminate = () => frame.remove();
      inside.document.body.append(script);
    }
  };
  window.Worker = window.IFrameWorker;
}
