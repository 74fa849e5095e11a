// Watches one notebook page: when a picture that an event caused has been painted, and whether it ever blinked.
// All times are performance.now(), in ms.
(() => {
  const AREA = ".jp-Cell-outputArea, .output_wrapper";
  const CONTROL = ".widget-slider, .widget-hslider, .widget-readout, .widget-label, .noUi-target, .ui-slider";
  const seen = (window.latency = { events: [], changes: [], blank: 0, heights: 0 });
  seen.reset = () => Object.assign(seen, { events: [], changes: [], blank: 0, heights: 0 });

  // -- what the reader does; the browser stamps it when it arrives
  for (const type of ["keydown", "mousemove", "change"])
    addEventListener(type, event => seen.events.push({ type, time: event.timeStamp }), true);

  // -- what changes because of it, in any output area, the control itself left out
  const loaded = new WeakSet(); // an image that was loaded once shows its old picture until the next is there
  let waiting = [];
  const note = picture => {
    const change = { picture, painted: null };
    seen.changes.push(change);
    waiting.push(change);
  };
  const counts = node => {
    const element = node.nodeType === Node.ELEMENT_NODE ? node : node.parentElement;
    return element?.isConnected && element.closest(AREA) && !element.closest(CONTROL);
  };
  document.addEventListener("load", event => {
    if (event.target.tagName !== "IMG") return;
    loaded.add(event.target);
    if (counts(event.target)) note(true);
  }, true);
  new MutationObserver(records => {
    if (records.some(r => r.type !== "attributes" && [...r.addedNodes, r.target].some(counts))) note(false);
  }).observe(document, { subtree: true, childList: true, characterData: true });

  // -- a change is painted when a message arrives that was posted in the frame after it
  const afterPaint = new MessageChannel();
  let framed = [];
  afterPaint.port1.onmessage = () => {
    const now = performance.now();
    for (const change of framed) change.painted = now;
    framed = [];
  };
  const before = new Map(); // output area -> had it a picture, how high was it
  const frame = () => {
    for (const area of document.querySelectorAll(AREA)) {
      const was = before.get(area) ?? { picture: false, height: null };
      const height = area.getBoundingClientRect().height;
      const picture = [...area.querySelectorAll("img")].some(i => loaded.has(i) && i.offsetHeight > 30);
      if (was.picture && !picture) seen.blank++;
      if (was.height !== null && Math.abs(height - was.height) > 0.5) seen.heights++;
      before.set(area, { picture: was.picture || picture, height });
    }
    if (waiting.length) {
      framed = framed.concat(waiting);
      waiting = [];
      afterPaint.port2.postMessage(0);
    }
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
})();
